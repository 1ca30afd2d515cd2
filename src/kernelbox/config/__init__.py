"""What may be said to us: the settings of the environment, and the arguments of calls."""

from kernelbox.config.checks import LONGEST_NAME as LONGEST_NAME, check_name as check_name
from kernelbox.config.settings import VARIABLES as VARIABLES, Settings as Settings
from kernelbox.config.spelling import nearest as nearest
