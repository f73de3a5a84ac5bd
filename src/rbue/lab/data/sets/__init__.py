"""The registered data sets, one file each; a new file here is a new set."""
