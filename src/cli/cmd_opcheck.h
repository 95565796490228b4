/* The verb opcheck: checks and times the ops of every backend against the reference. */
#ifndef FL_CLI_CMD_OPCHECK_H
#define FL_CLI_CMD_OPCHECK_H

/* argv[0] is the verb. Returns the process exit code: 0 all passed, 1 a case failed, 2 usage, 69 no such device. */
int fl_cmd_opcheck(int argc, char **argv);

#endif
