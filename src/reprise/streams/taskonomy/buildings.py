"""Divisions of Taskonomy's buildings into those to train on, to choose settings by and to test on, by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reprise.errors import InputError
from reprise.streams.fetch import some

HELD_OUT = 4
"""Training buildings of the paper's list that settings are chosen by: the last ones. The report trains on them too,
since the paper names none for validation."""


@dataclass(frozen=True)
class Split:
    """Buildings by part."""

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (*self.train, *self.validation, *self.test)


# The paper prints these 47 + 6 names (and speaks of 50 and of 54 buildings). They are a draw of its own that has
# training, validation and test buildings of the official splits on both sides: never mix the two.
_PRINTED = (
    "cutlerville rockport coffeen tomales pinesdale capistrano bettendorf mcnary barboursville hacienda uvalda "
    "tolstoy wyatt haymarket holcut kingdom windhorst bonfield monson touhy marksville oyens euharlee glassboro "
    "brentsville goodview darrtown maben pomaria keiser gloria silva portal thrall smoketown martinville "
    "waldenburg lakeville springerville silerton mifflintown wainscott superior stokes mayesville wilkinsburg "
    "archer"
)
PAPER_TRAIN = tuple(_PRINTED.split())
PAPER_TEST = ("moberly", "northgate", "adairsville", "cisne", "marstons", "woonsocket")

# The official files train_val_test_*.csv. Each holds the one before it: here stands what it adds, to train,
# validate and test on. (The table on the data set's page counts one or two buildings more for testing and fewer for
# training than its files do.)
_ADDED = {
    "tiny": (
        "hanson merom klickitat onaga leonardo marstons newfields pinesdale lakeville cosmos benevolence pomaria "
        "tolstoy shelbyville allensville wainscott beechwood coffeen stockman hiteman woodbine lindenwood "
        "forkland mifflinburg ranchester",
        "wiconisco corozal collierville markleeville darden",
        "ihlen muleshoe uvalda noxapater mcdade",
    ),
    "medium": (
        "goodfield eagan adairsville castor cottonport tyler sugarville martinville chilhowie silas lynchburg "
        "tokeland frankfort goodyear albertville andover airport rogue ancor maida athens broseley irvine "
        "tilghmanton goodwine hildebran winooski goffs sunshine globe emmaus neibert parole potterville rosser "
        "springerville nuevo stilwell browntown readsboro shelbiana arkansaw bonnie hominy churchton willow "
        "timberon bohemia micanopy hillsdale wilseyville kemblesville thrall bonesteel annona soldier neshkoro "
        "newcomb byers oyens victorville pamelia marland sussex bautista highspire sweatman clairton touhy "
        "anaheim duarte musicks hainesburg maugansville",
        "hortense southfield gravelly hordville swormville pearce pablo pittsburg sands kobuk westfield wyldwood "
        "swisshome scioto waipahu",
        "brinnon darrtown cousins donaldson poipu rockport cauthron german edson wando helton natural cochranton "
        "losantville",
    ),
    "full": (
        "arbutus arona reserve aloha munsons ballou woonsocket foyil creede superior tansboro rancocas ossipee "
        "haxtun haaswood euharlee hacienda peacock convoy roane ellaville tomales springhill shellsburg chrisney "
        "rutherford mullica winthrop codell chireno bremerton halfway hendrix merlin baneberry nimmons bountiful "
        "carpio ovalo waimea grassy monticello portal cutlerville gilbert kinney quantico waukeenah pocopson "
        "copemish leavittsburg monson applewold sasakwa anthoston gaylord whitethorn clarkridge gladstone "
        "cornville hatfield circleville marksville trail chesterbrook gloria funkstown tippecanoe mesic stokes "
        "bethlehem mcewen hobson glenmoor vails kangley voorhees castroville millbury waucousta dansville "
        "ludlowville cooperstown inkom model ruckersville hambleton bettendorf american westerville maunawili "
        "reyno sanctuary cullison cobalt orangeburg jacobus oriole pasatiempo beach mahtomedi wilkinsburg "
        "barboursville frierson kettle booth barranquitas burien carneiro placida hallettsville fredericksburg "
        "aulander culbertson bellwood stanleyville smoketown winfield seward macarthur kankakee jenners nemacolin "
        "archer random carpendale spotswood frontenac avonia seatonville roxboro torrington grantsville "
        "spencerville ewell wyatt plumerville lynxville grangeville colebrook germfask almena pettigrew brevort "
        "fitchburg hometown montreal mckeesport adrian branford dunmor windhorst alfred islandton brewton cabin "
        "cebolla mammoth alstown crandon sodaville everton maiden divide cayuse helix umpqua chiloquin "
        "schoolcraft kathryn dedham corder pleasant harrellsville mashulaville fleming hartline channel checotah "
        "orason fonda kerrtown noonday capistrano poyen spread weleetka gasburg bolton kendall ooltewah "
        "wattsville cohoes lucan cason roeville kremlin yankeetown maryhill lenoir kildare blackstone peden "
        "mogote keiser potosi delton cisne mayesville nicut lindsborg seiling mobridge tradewinds annawan "
        "mogadore retsof murchison lluveras lajas okabena angiola callicoon michiana sawpit stockwell dryville "
        "sumas wilbraham holcut kingdom kopperl calmar lineville mosinee haymarket uncertain mifflintown "
        "scandinavia mazomanie tariffville mentasta freedom bowlus fishersville northgate eagerville",
        "laytonsville clive wesley maricopa tomkins texasville sundown moberly auburn eudora ashport lessley "
        "assinippi silerton warrenville almota cantwell cashel glassboro shauck yscloskey ribera graceville "
        "hercules macedon howie cokeville herricks kinde sagerton starks jennie hornsby mosquito sarcoxie artois "
        "deemston galatia denmark wells pocasset waldenburg shumway macksville crookston eastville yadkinville",
        "espanola matoaca vacherie caruthers manassas bonfield hammon leilani paige benicia imbery landing "
        "wappingers mcnary purple plessis ewansville kihei goodview calavo morris macland brentsville experiment "
        "connellsville rosenberg rabbit bertram dalcour broadwell dauberville destin peconic maben shingler "
        "wilkesboro mcclure ohoopee wakeman blenheim gastonia aldine badger sontag belpre tysons gluck samuels "
        "ladue coeburn",
    ),
    "fullplus": (
        "grace braxton ballantine mccloud aldrich maguayo melstone gough terrell ackermanville kirwin biltmore "
        "kevin seeley elton mentmore portola redbank laupahoehoe milford bowmore rough hitchland darnestown "
        "kronborg silva milaca whiteriver deatsville kirksville azusa lindberg hurley country siren gratz apache",
        "ogilvie idanha tallmadge sisters merchantville edgemere greigsville elmira",
        "kingfisher lovilia gluek akiak bellemeade liddieville norvelt barahona grigston lathrup",
    ),
}


def _official() -> dict[str, Split]:
    found: dict[str, Split] = {}
    parts: list[list[str]] = [[], [], []]
    for name, added in _ADDED.items():
        parts = [sorted([*had, *more.split()]) for had, more in zip(parts, added, strict=True)]
        found[name] = Split(*map(tuple, parts))
    return found


SPLITS = {"paper": Split(PAPER_TRAIN[:-HELD_OUT], PAPER_TRAIN[-HELD_OUT:], PAPER_TEST), **_official()}


def find_split(name: str, there: Iterable[str]) -> Split:
    """The named split, all of whose buildings must be `there`."""
    if name not in SPLITS:
        raise InputError(f"buildings: {name!a} is no split; choose one of {', '.join(SPLITS)}.")
    split, known = SPLITS[name], set(there)
    if lacking := sorted(set(split.all) - known):
        raise InputError(
            f"buildings: {len(lacking)} of the {len(split.all)} buildings of {name} are not there "
            f"({some(lacking)}); get them, or use --buildings points."
        )
    return split


def named_buildings(names: Iterable[str]) -> tuple[str, ...]:
    """Names of buildings, among which that of a split stands for all of its own."""
    return tuple(
        dict.fromkeys(b for name in names for b in (SPLITS[name].all if name in SPLITS else (name,)))
    )
