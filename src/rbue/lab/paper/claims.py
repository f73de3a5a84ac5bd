"""The sentences of §3.4 and §4 that can be true or false, against the paper's own numbers and against measured ones.

:data:`CLAIMS` is a table: one row a sentence, with its reading and what is compared (:mod:`rbue.lab.paper.judging`).
Left out are definitions, citations of other papers' results and sentences about intentions. How a sentence is read is
part of each claim: words such as "similar" need a number to be checked, and the number is stated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from rbue import variance
from rbue.lab.paper import claim_checks as checks
from rbue.lab.paper.experiments import DIVERSE, DROPOUT, DROPRELU, ENSEMBLE, METHODS, MODELS, SIX
from rbue.lab.paper.judging import Axis, Cases, Claim, Judged, Look, Numbers, Predicate, Verdict, every, judge, some
from rbue.lab.paper.numbers import POSITION_TABLE, TABLES
from rbue.lab.paper.results import CORRUPTION_COUNT

Q08, Q09, Q095 = "mc-droprelu:0.8", "mc-droprelu:0.9", "mc-droprelu:0.95"
OURS = ("mc-rrelu", *DROPRELU)
DEEP = ("resnet18", "densenet121")
TINY = "tiny-imagenet"
ON_CIFAR: dict[str, Axis] = {"data": checks.CIFAR, "model": MODELS}
POSITION: dict[str, Axis] = {"data": TINY, "model": "densenet121"}
PLANE: dict[str, Axis] = {"data": "cifar10", "model": "resnet18"}
"""§4.4 does not state its data set; CIFAR-10 is assumed, which is that of the plane in §4.5."""

# Under corruptions the paper shows figures without numbers, so only measured ones can tell. All medians are over the
# 19 corruptions on DenseNet-121, the paper's network, or on the one that was asked for. The paper's six boxes are read
# as p=0.2 and q=0.9.
SHIFTED: dict[str, Axis] = {"data": "cifar10", "model": attrgetter("shift_model"), "severity": attrgetter("severities")}
SHIFT_OURS, SHIFT_OTHERS = (Q09, "mc-rrelu"), ("single", "mc-dropout:0.2", "svi")
AT = "{model}, severity {severity}"

TIME = "training_seconds"
JSD, DIS = ("mean_jsd", "max_jsd"), ("mean_dis", "max_dis")
BETTER = {"accuracy": ">", "ece": "<"}
NOT_WORSE = {"accuracy": ">=", "ece": "<="}
NEAR = {"accuracy": 0.01, "ece": 0.01}
PAIR = "{measure} of {one} and {other}, {model} on {data}"


def _without(methods: Sequence[str], *left_out: str) -> list[str]:
    return [method for method in methods if method not in left_out]


def _pairs(left: Axis, sign: str | dict[str, str], right: Axis, **axes: Axis) -> Predicate:
    """Every method of ``left`` with every one of ``right``, on both CIFAR sets and all networks unless axes differ."""
    return every(Cases(PAIR, "{one}", sign, "{other}", **{**ON_CIFAR, "one": left, "other": right, **axes}))


def _more_diverse(left: Axis, right: Axis, measures: Axis) -> Cases:
    what = "{measure} of {one} and {other}"
    return Cases(what, "{one}", ">", "{other}", **PLANE, measure=measures, one=left, other=right)


def _diversity_order(first: str, second: str, measures: Axis) -> Predicate:
    rest = _without(DIVERSE, first, second)
    return every(_more_diverse(first, (second, *rest), measures), _more_diverse(second, rest, measures))


def _outperform_shifted(sign: dict[str, str], others: Axis) -> Predicate:
    what = f"median {{measure}} of {{one}} and {{other}}, {AT}"
    return every(Cases(what, "{one}", sign, "{other}", **SHIFTED, one=SHIFT_OURS, other=others))


def _all_against_one(measure: str, sign: str) -> Predicate:
    """DropReLU everywhere against the last or the first one only, in Table 6."""
    what, only = "{measure} with all and with only the {where}", f"{Q08},{{where}}"
    axes = {**POSITION, "table": POSITION_TABLE, "measure": measure, "where": ("last", "first")}
    return every(Cases(what, Q08, sign, only, **axes))


def _extra_time(**place: str) -> Callable[[Look], float]:
    return lambda look: look(Q09, **place) - look("single", **place)


def _half_an_ensemble(look: Look) -> float:
    return look(ENSEMBLE) / 2


def _from_ensemble(look: Look) -> float:
    return abs(look("{one}") - look(ENSEMBLE))


# fmt: off
CLAIMS: tuple[Claim, ...] = (
    # §3.4, the variance of a layer's sum. "By its own numbers" puts numbers into the paper's formulas; "here" uses the
    # exact variance, which the simulation confirms.
    Claim("variance-dropout", "3.4", "Var(f_Dropout) = p(1-p) Σ x²",
        "The formula agrees with a simulation of an unscaled dropout layer within four standard errors.",
        checks.formula_agrees("dropout", "p", variance.dropout)),
    Claim("variance-droprelu", "3.4", "Var(f_DropReLU) = q(1-q) Σ x² + ε",
        "The formula, with ε = Var(Σ Q·ReLU(x)) as defined there, agrees with a simulation. (It leaves out the "
        "covariance of its two terms, which contain the same Q.)",
        checks.formula_agrees("drop_relu", "q", variance.drop_relu_paper)),
    Claim("epsilon-positive", "3.4", "it can be guaranteed that it is always greater than 0",
        "ε > 0 for 0 < q < 1 on a layer with at least one positive input (elsewhere it is 0).",
        every(Cases("q={q}", lambda look: checks.epsilon(look.case["q"]), ">", 0.0, q=checks.RATES))),
    Claim("epsilon-incalculable", "3.4", "This cannot be calculated",
        "No closed form of ε agrees with a simulation; tried is q(1-q)·Σ_(x>0) x².",
        checks.epsilon_cannot_be_calculated),
    Claim("more-variance", "3.4",
        "when q ≤ 1-p, the variance of the output of DropReLU is always greater than [that] of Dropout",
        "For p and q from 0.1 to 0.9 with q ≤ 1-p, on inputs of both signs. By its own numbers: the paper's formula; "
        "here: the exact variance q(1-q)·Σ_(x<0) x².",
        checks.more_variance(variance.drop_relu), paper_holds=checks.more_variance(variance.drop_relu_paper)),
    Claim("experiments-prove-diversity", "3.4", "the experimental results also prove this conclusion",
        "At p=0.2 and q=0.8, MC-DropReLU is more diverse than MC-Dropout in Mean- and Max-JSD and DIS (ResNet-18). "
        "That it is more diverse does not prove the reason given.",
        every(Cases("{measure}, q=0.8 against p=0.2", Q08, ">", "mc-dropout:0.2", **PLANE, measure=(*JSD, *DIS)))),
    # §4.1: the data sets, and the size of the models that the captions of Tables 1 to 3 state.
    Claim("cifar-counts", "4.1.1", "in 10 and 100 classes … 50000 training images and 10000 test images",
        "The published sets have these numbers of classes and images (from the registry, which checks the files).",
        checks.counts(50_000, 10_000, cifar10=10, cifar100=100), paper_holds=checks.not_in_tables),
    Claim("tiny-counts", "4.1.1", "100000 training images, 10000 test images and 10000 validation images",
        "The published set has 200 classes, 100,000 training and 10,000 labelled validation images; the labels of its "
        "test images are not published and not looked at.",
        checks.counts(100_000, 10_000, **{TINY: 200}), paper_holds=checks.not_in_tables),
    Claim("ninety-five", "4.1.1", "the CIFAR10-C and TinyImageNet-C datasets consist of 95 corruptions",
        "19 types at five severities are 95.",
        every(Cases("19 types at 5 severities", CORRUPTION_COUNT * 5.0, "=", 95.0))),
    Claim("four-times-the-size", "Tables 1–3",
        "In terms of model size, Deep Ensemble is four times that of all other methods",
        "The trained numbers of Deep Ensemble are four times those of each other method. (SVI has a mean and a "
        "deviation for every weight.)",
        every(Cases("{data} {model}, ensemble against 4 × {one}", ENSEMBLE, "=", lambda look: 4 * look("{one}"),
            data=TABLES.values(), model=MODELS, one=_without(METHODS, ENSEMBLE), measure="parameters")),
        paper_holds=checks.not_in_tables),
    # §4.2 on clean images: accuracy and ECE in Tables 1 and 2.
    Claim("on-par-and-cheaper", "4.2",
        "reliable uncertainty estimates on par with Deep Ensemble at a significantly lower computational cost",
        "On each CIFAR set and network the best ECE of our five rows is at most 0.01 above Deep Ensemble's, and each "
        "of them trains in at most half its time.",
        every(
            Cases("best ECE of ours, {model} on {data}", lambda look: look.best(OURS), "<=",
                lambda look: look(ENSEMBLE) + NEAR["ece"], measure="ece"),
            Cases("training of {one}, {model} on {data}", "{one}", "<=", _half_an_ensemble, one=OURS, measure=TIME),
            **ON_CIFAR)),
    Claim("closest-to-ensemble", "4.2",
        "Even if our methods do not achieve the same effect as Deep Ensemble, they are the closest",
        "On each CIFAR set and network none of the other methods has a higher accuracy or a lower ECE than the best "
        "of our rows.",
        every(Cases("best {measure} of ours and of the others, {model} on {data}", lambda look: look.best(OURS),
            NOT_WORSE, lambda look: look.best(_without(METHODS, *OURS, ENSEMBLE)), **ON_CIFAR))),
    Claim("outperforms-dropout", "4.2",
        "MC-DropReLU outperforms MC-Dropout in all metrics regardless of the value of q",
        "For each CIFAR set, network, q and p: higher accuracy, lower ECE, shorter training; equal is not better.",
        _pairs(DROPRELU, {**BETTER, TIME: "<"}, DROPOUT)),
    Claim("outperforms-dropout-weakly", "4.2",
        "MC-DropReLU outperforms MC-Dropout in all metrics regardless of the value of q",
        "The same read as kindly as possible: never a lower accuracy nor a higher ECE, times left out.",
        _pairs(DROPRELU, NOT_WORSE, DROPOUT)),
    Claim("q-depends-on-model", "4.2",
        "there is still a slight difference in the effect of different q for different models",
        "On each CIFAR set none of the four q is the most accurate for all three networks; equal is the most "
        "accurate.",
        checks.rates_differ),
    Claim("best-q-resnet-densenet", "4.2",
        "When q=0.95, the ResNet and DenseNet models will have good accuracy and calibration scores",
        "On both CIFAR sets no other q of the four has a higher accuracy or a lower ECE on these networks.",
        _pairs(Q095, NOT_WORSE, _without(DROPRELU, Q095), model=DEEP)),
    Claim("best-q-vgg", "4.2", "the VGG model will have better accuracy and calibration scores when q=0.9",
        "On both CIFAR sets no other q of the four has a higher accuracy or a lower ECE on VGG-13.",
        _pairs(Q09, NOT_WORSE, _without(DROPRELU, Q09), model="vgg13")),
    Claim("p02-q08-cifar", "4.2",
        "the uncertainty quality of MC-DropReLU is better than that of MC-Dropout [p=0.2, q=0.8]",
        "Lower ECE for q=0.8 than for p=0.2 on each CIFAR set and network; equal is not better.",
        _pairs(Q08, "<", "mc-dropout:0.2", measure="ece")),
    Claim("svi-larger-data", "4.2", "accuracy and ECE of [SVI] deteriorate as the … dataset become more complex",
        "From CIFAR-10 to CIFAR-100 SVI's accuracy falls and its ECE rises on each network. (So do Single's.)",
        every(Cases("SVI's {measure} of {model} on cifar10 and {model} on cifar100",
            lambda look: look("svi", data="cifar10"), BETTER, lambda look: look("svi", data="cifar100"), model=MODELS)),
        across_data=True),
    Claim("svi-larger-model", "4.2", "accuracy and ECE of [SVI] deteriorate as the model … become more complex",
        "From VGG-13 to DenseNet-121 SVI's accuracy falls and its ECE rises on both CIFAR sets.",
        every(Cases("SVI's {measure} of vgg13 on {data} and densenet121 on {data}",
            lambda look: look("svi", model="vgg13"), BETTER, lambda look: look("svi", model="densenet121"),
            data=checks.CIFAR))),
    # §4.2: model size and training time in Tables 1 and 2.
    Claim("no-more-parameters", "4.2",
        "Our method does not add additional parameters compared to a single model and MC-Dropout",
        "Equally many trained numbers.",
        _pairs(OURS, "=", ("single", *DROPOUT), measure="parameters")),
    Claim("slower-than-dropout", "4.2", "in terms of training time, our methods are … slower than MC-Dropout",
        "None of our rows trains faster than MC-Dropout on a CIFAR set; equal at the printed precision passes.",
        _pairs(OURS, ">=", DROPOUT, measure=TIME)),
    Claim("slightly-slower-than-dropout", "4.2", "our methods are slightly slower than MC-Dropout",
        "None of our rows takes more than 10 % longer than MC-Dropout on a CIFAR set.",
        every(Cases("training of {one} and 1.1 × {other}, {model} on {data}", "{one}", "<=",
            lambda look: 1.1 * look("{other}"), **ON_CIFAR, one=OURS, other=DROPOUT, measure=TIME))),
    Claim("sampling-is-slower", "4.2", "the sampling on the random ReLU is slower than the sampling on dropout",
        "With one random place each, before the classifier, DropReLU trains longer than MC-Dropout (DenseNet-121 on "
        "TinyImageNet; the paper: Table 6 against Table 3).",
        every(Cases("training with one DropReLU and with {other}", f"{Q08},last", ">", "{other}", **POSITION,
            other=DROPOUT, measure=TIME))),
    Claim("faster-than-ensemble", "4.2", "the overall time is still much faster than Deep Ensemble",
        "Each of our rows trains in at most half of Deep Ensemble's time on each CIFAR set and network.",
        every(Cases("training of {one} and half an ensemble, {model} on {data}", "{one}", "<=", _half_an_ensemble,
            **ON_CIFAR, one=OURS, measure=TIME))),
    # §4.2 under corruptions.
    Claim("shift-growing-advantage", "4.2",
        "as the severity of the perturbations increases, the advantages of our methods are becoming more obvious",
        "The median ECE of MC-Dropout minus that of each of ours is larger at the highest severity than at the "
        "lowest.",
        every(Cases("ECE of MC-Dropout minus {one}, {model}, severity {last} and {first}",
            lambda look: look("mc-dropout:0.2", severity="last") - look("{one}", severity="last"), ">",
            lambda look: look("mc-dropout:0.2", severity="first") - look("{one}", severity="first"),
            data="cifar10", model=SHIFTED["model"], one=SHIFT_OURS, measure="ece",
            first=lambda numbers: numbers.severities[:1], last=lambda numbers: numbers.severities[-1:]))),
    Claim("shift-on-par", "4.2", "Our methods perform on par with Deep Ensemble [under corruptions]",
        "At every severity the medians of ours are at most one percentage point of accuracy and 0.01 of ECE worse.",
        every(Cases(f"{{one}} behind in median {{measure}}, {AT}", lambda look: look.behind("{one}", ENSEMBLE), "<=",
            NEAR, **SHIFTED, one=SHIFT_OURS))),
    Claim("shift-outperform", "4.2", "and consistently outperform MC-Dropout and SVI",
        "At every severity ours have the higher median accuracy and the lower median ECE.",
        _outperform_shifted(BETTER, ("mc-dropout:0.2", "svi"))),
    Claim("shift-ensemble-lowest", "4.2", "the ECE of Deep Ensemble is the lowest under different noise intensities",
        "At every severity its median ECE is below that of the five other methods.",
        every(Cases(f"median ECE of {ENSEMBLE} and {{other}}, {AT}", ENSEMBLE, "<", "{other}", **SHIFTED,
            other=(*SHIFT_OURS, *SHIFT_OTHERS), measure="ece"))),
    Claim("shift-others-higher", "4.2", "Single model, MC-Dropout, and SVI all have higher ECE than our methods",
        "At every severity, by medians; then ours are also the closest to Deep Ensemble, as the sentence before says.",
        _outperform_shifted({"ece": "<"}, SHIFT_OTHERS)),
    # §4.3 on clean images: Table 3.
    Claim("tiny-similar-to-ensemble", "4.3",
        "the performance of our methods is similar to Deep Ensemble … on both ResNet-18 and DenseNet-121",
        "Each of our rows lies within one percentage point of accuracy and 0.01 of ECE of Deep Ensemble.",
        every(Cases("distance in {measure} of {one}, {model}", _from_ensemble, "<=", NEAR, data=TINY, model=DEEP,
            one=OURS))),
    Claim("tiny-better-than-dropout", "4.3", "and significantly better than MC-Dropout in terms of accuracy and ECE",
        "Each of our rows has a higher accuracy and a lower ECE than both rows of MC-Dropout on ResNet-18 and "
        "DenseNet-121; equal is not better. (Significance needs repetitions, which the paper does not report.)",
        _pairs(OURS, BETTER, DROPOUT, data=TINY, model=DEEP)),
    Claim("tiny-vgg-slightly-worse", "4.3", "the performance on VGG-13 model is slightly worse",
        "Each of our rows is worse than Deep Ensemble in both, by at most two percentage points and 0.05 of ECE.",
        every(
            Cases(PAIR, "{one}", {"accuracy": "<", "ece": ">"}, "{other}", one=OURS, other=ENSEMBLE),
            Cases("distance in {measure} of {one}", _from_ensemble, "<=", {"accuracy": 0.02, "ece": 0.05}, one=OURS),
            data=TINY, model="vgg13")),
    Claim("tiny-vgg-generalises-poorly", "4.3", "VGG model has poor generalization ability for large datasets",
        "VGG-13's Single is at least five percentage points less accurate than each other network's.",
        every(Cases("{model} and VGG-13 + 5 points", "single", ">=", lambda look: look("single", model="vgg13") + 0.05,
            data=TINY, model=DEEP, measure="accuracy"))),
    Claim("tiny-four-times-less-time", "4.3", "with a training time … four times smaller than that of Deep Ensemble",
        "Deep Ensemble trains at least 3.5 times as long as each of our rows, on each network.",
        every(Cases("ensemble's training in trainings of {one}, {model}",
            lambda look: look(ENSEMBLE, measure=TIME) / look("{one}", measure=TIME), ">=", 3.5,
            data=TINY, model=MODELS, one=OURS))),
    Claim("tiny-time-of-a-single", "4.3", "and nearly the same as that of a single model",
        "None of our rows trains more than 10 % longer than Single.",
        every(Cases("training of {one} and 1.1 × Single, {model}", "{one}", "<=", lambda look: 1.1 * look("single"),
            data=TINY, model=MODELS, one=OURS, measure=TIME))),
    Claim("p02-q08-tiny", "4.3",
        "the uncertainty quality of MC-DropReLU is better than that of MC-Dropout [p=0.2, q=0.8]",
        "Lower ECE for q=0.8 than for p=0.2 on each network.",
        _pairs(Q08, "<", "mc-dropout:0.2", data=TINY, measure="ece")),
    # §4.3 under corruptions.
    Claim("shift-gap-more-obvious", "4.3",
        "On TinyImageNet, the ECE gap between methods is more obvious than on CIFAR10",
        "At every severity the range of the six methods' median ECE is wider on TinyImageNet.",
        every(Cases(f"range of median ECE, TinyImageNet and CIFAR-10, {AT}", lambda look: look.width(SIX, data=TINY),
            ">", lambda look: look.width(SIX), **SHIFTED, measure="ece")),
        across_data=True),
    Claim("shift-exceeds-ensemble", "4.3", "MC-DropReLU(0.9) exceeds Deep Ensemble in ECE at all noise intensities",
        "At every severity its median ECE on TinyImageNet is the lower one.",
        every(Cases(f"median ECE of q=0.9 and {ENSEMBLE}, {AT}", Q09, "<", ENSEMBLE, **{**SHIFTED, "data": TINY},
            measure="ece"))),
    # §4.4: Tables 4 and 5.
    Claim("diversity-helps", "4.4", "Better diversity … leads to a higher quality of the uncertainty estimates",
        "Over the seven rows a larger Mean-JSD goes with a smaller ECE more often than not (ResNet-18 on CIFAR-10).",
        checks.diversity_helps),
    Claim("jsd-order", "4.4.1", "the diversity of Deep Ensemble is the best …, followed by MC-DropReLU(q=0.8)",
        "In Mean-JSD and Max-JSD among the seven rows.",
        _diversity_order(ENSEMBLE, Q08, JSD)),
    Claim("jsd-between", "4.4.1",
        "better than MC-Dropout and slightly worse than Deep Ensemble in terms of the distance metric",
        "MC-DropReLU(0.8), of which the sentence before speaks, lies between them in Mean-JSD and Max-JSD.",
        every(_more_diverse(Q08, DROPOUT, JSD), _more_diverse(ENSEMBLE, Q08, JSD))),
    Claim("ours-more-diverse", "4.4",
        "the models obtained by our proposed sampling method are better than MC-Dropout [in diversity]",
        "Read for all of our rows: q=0.8, q=0.95 and MC-RReLU exceed both rows of MC-Dropout in all four measures.",
        every(_more_diverse((Q08, Q095, "mc-rrelu"), DROPOUT, (*JSD, *DIS)))),
    Claim("dis-order", "4.4.2", "the diversity of MC-DropReLU (q=0.8) is the best … followed by Deep Ensemble",
        "In Mean-DIS and Max-DIS among the seven rows.",
        _diversity_order(Q08, ENSEMBLE, DIS)),
    Claim("dis-above", "4.4.2",
        "significantly better than MC-Dropout and slightly better than Deep Ensemble in … disagreement",
        "MC-DropReLU(0.8) exceeds both in Mean-DIS and Max-DIS.",
        every(_more_diverse(Q08, (*DROPOUT, ENSEMBLE), DIS))),
    Claim("diversity-competitive", "4.4.2", "our method is competitive with Deep Ensemble in terms of diversity",
        "MC-DropReLU(0.8) reaches at least 80 % of Deep Ensemble in each of the four measures.",
        every(Cases(f"{{measure}} of q=0.8 and 0.8 × {ENSEMBLE}", Q08, ">=", lambda look: 0.8 * look(ENSEMBLE), **PLANE,
            measure=(*JSD, *DIS)))),
    # §4.5: the position of DropReLU (Table 6) and its rate (the figure of the plane).
    Claim("droprelu-better-than-rrelu", "4.5", "the performance of MC-DropReLU is better than that of MC-RReLU",
        "On each data set and network the best accuracy over q is higher, and the best ECE not higher than "
        "MC-RReLU's.",
        every(Cases("best {measure} over q and MC-RReLU, {model} on {data}", lambda look: look.best(DROPRELU),
            {"accuracy": ">", "ece": "<="}, "mc-rrelu", data=TABLES.values(), model=MODELS))),
    Claim("more-layers-diversity", "4.5", "the more DropReLU layers, the greater the diversity of the final results",
        "Mean-JSD is larger with DropReLU everywhere than with the last or first one only. Table 6 has no diversity.",
        _all_against_one("mean_jsd", ">")),
    Claim("more-layers-ece", "4.5", "and the better the model calibration metric ECE",
        "ECE is smaller with DropReLU everywhere than with the last or the first one only.",
        _all_against_one("ece", "<")),
    Claim("more-layers-time", "4.5", "the more DropReLU layers … will lead to the increase of training time",
        "Training takes longer with DropReLU everywhere than with the last or the first one only.",
        _all_against_one(TIME, ">")),
    Claim("extra-time-grows", "4.5",
        "this part of the increased training time will increase with the model and dataset size",
        "The time of q=0.9 beyond Single's is longer on TinyImageNet than on CIFAR-10 for each network, and longer "
        "for DenseNet-121 than for VGG-13 on each set (the deeper network; VGG-13 has more weights).",
        every(
            Cases("extra time of {model}, TinyImageNet and CIFAR-10", _extra_time(data=TINY), ">",
                _extra_time(data="cifar10"), model=MODELS),
            Cases("extra time on {data}, DenseNet-121 and VGG-13", _extra_time(model="densenet121"), ">",
                _extra_time(model="vgg13"), data=TABLES.values()),
            measure=TIME),
        across_data=True),
    Claim("plane-better-than-dropout", "4.5",
        "the optimal MC-DropReLU configuration … can provide better performance than MC-Dropout",
        "Some q of the tables has a higher accuracy and a lower ECE than both MC-Dropout rows (ResNet-18, CIFAR-10).",
        some(DROPRELU, Cases("{measure} against {other}", "{one}", BETTER, "{other}", **PLANE, other=DROPOUT))),
    Claim("plane-close-to-ensemble", "4.5", "and performance close to Deep Ensemble",
        "Some q of the tables lies within one percentage point of accuracy and 0.01 of ECE (ResNet-18, CIFAR-10).",
        some(DROPRELU, Cases("distance in {measure}", _from_ensemble, "<=", NEAR, **PLANE))),
    Claim("plane-ece-not-smallest", "4.5",
        "the ECE of the configuration depicted by the yellow star is not the smallest",
        "No q with the highest accuracy is one with the smallest ECE. (The figure's numbers are not given; the tables "
        "round ECE to two digits.)",
        checks.best_is_not_best_calibrated,
        paper_holds=lambda _: Verdict(None, "at two printed digits the most accurate q ties with the smallest ECE")),
)
# fmt: on


def judge_all(measured: Numbers) -> list[Judged]:
    """Both verdicts on every claim."""
    return [judge(claim, measured) for claim in CLAIMS]
