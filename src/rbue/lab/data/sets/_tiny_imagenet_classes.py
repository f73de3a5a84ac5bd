"""The 200 classes of TinyImageNet: WordNet codes in label order (sorted) and their first names."""

_LINES = """
n01443537 goldfish
n01629819 European fire salamander
n01641577 bullfrog
n01644900 tailed frog
n01698640 American alligator
n01742172 boa constrictor
n01768244 trilobite
n01770393 scorpion
n01774384 black widow
n01774750 tarantula
n01784675 centipede
n01855672 goose
n01882714 koala
n01910747 jellyfish
n01917289 brain coral
n01944390 snail
n01945685 slug
n01950731 sea slug
n01983481 American lobster
n01984695 spiny lobster
n02002724 black stork
n02056570 king penguin
n02058221 albatross
n02074367 dugong
n02085620 Chihuahua
n02094433 Yorkshire terrier
n02099601 golden retriever
n02099712 Labrador retriever
n02106662 German shepherd
n02113799 standard poodle
n02123045 tabby
n02123394 Persian cat
n02124075 Egyptian cat
n02125311 cougar
n02129165 lion
n02132136 brown bear
n02165456 ladybug
n02190166 fly
n02206856 bee
n02226429 grasshopper
n02231487 walking stick
n02233338 cockroach
n02236044 mantis
n02268443 dragonfly
n02279972 monarch
n02281406 sulphur butterfly
n02321529 sea cucumber
n02364673 guinea pig
n02395406 hog
n02403003 ox
n02410509 bison
n02415577 bighorn
n02423022 gazelle
n02437312 Arabian camel
n02480495 orangutan
n02481823 chimpanzee
n02486410 baboon
n02504458 African elephant
n02509815 lesser panda
n02666196 abacus
n02669723 academic gown
n02699494 altar
n02730930 apron
n02769748 backpack
n02788148 bannister
n02791270 barbershop
n02793495 barn
n02795169 barrel
n02802426 basketball
n02808440 bathtub
n02814533 beach wagon
n02814860 beacon
n02815834 beaker
n02823428 beer bottle
n02837789 bikini
n02841315 binoculars
n02843684 birdhouse
n02883205 bow tie
n02892201 brass
n02906734 broom
n02909870 bucket
n02917067 bullet train
n02927161 butcher shop
n02948072 candle
n02950826 cannon
n02963159 cardigan
n02977058 cash machine
n02988304 CD player
n02999410 chain
n03014705 chest
n03026506 Christmas stocking
n03042490 cliff dwelling
n03085013 computer keyboard
n03089624 confectionery
n03100240 convertible
n03126707 crane
n03160309 dam
n03179701 desk
n03201208 dining table
n03250847 drumstick
n03255030 dumbbell
n03355925 flagpole
n03388043 fountain
n03393912 freight car
n03400231 frying pan
n03404251 fur coat
n03424325 gasmask
n03444034 go-kart
n03447447 gondola
n03544143 hourglass
n03584254 iPod
n03599486 jinrikisha
n03617480 kimono
n03637318 lampshade
n03649909 lawn mower
n03662601 lifeboat
n03670208 limousine
n03706229 magnetic compass
n03733131 maypole
n03763968 military uniform
n03770439 miniskirt
n03796401 moving van
n03804744 nail
n03814639 neck brace
n03837869 obelisk
n03838899 oboe
n03854065 organ
n03891332 parking meter
n03902125 pay-phone
n03930313 picket fence
n03937543 pill bottle
n03970156 plunger
n03976657 pole
n03977966 police van
n03980874 poncho
n03983396 pop bottle
n03992509 potter's wheel
n04008634 projectile
n04023962 punching bag
n04067472 reel
n04070727 refrigerator
n04074963 remote control
n04099969 rocking chair
n04118538 rugby ball
n04133789 sandal
n04146614 school bus
n04149813 scoreboard
n04179913 sewing machine
n04251144 snorkel
n04254777 sock
n04259630 sombrero
n04265275 space heater
n04275548 spider web
n04285008 sports car
n04311004 steel arch bridge
n04328186 stopwatch
n04356056 sunglasses
n04366367 suspension bridge
n04371430 swimming trunks
n04376876 syringe
n04398044 teapot
n04399382 teddy
n04417672 thatch
n04456115 torch
n04465501 tractor
n04486054 triumphal arch
n04487081 trolleybus
n04501370 turnstile
n04507155 umbrella
n04532106 vestment
n04532670 viaduct
n04540053 volleyball
n04560804 water jug
n04562935 water tower
n04596742 wok
n04597913 wooden spoon
n06596364 comic book
n07579787 plate
n07583066 guacamole
n07614500 ice cream
n07615774 ice lolly
n07695742 pretzel
n07711569 mashed potato
n07715103 cauliflower
n07720875 bell pepper
n07734744 mushroom
n07747607 orange
n07749582 lemon
n07753592 banana
n07768694 pomegranate
n07871810 meat loaf
n07873807 pizza
n07875152 potpie
n07920052 espresso
n09193705 alp
n09246464 cliff
n09256479 coral reef
n09332890 lakeside
n09428293 seashore
n12267677 acorn
"""

CLASSES = dict(line.split(" ", 1) for line in _LINES.split("\n") if line)
