# shellcheck shell=bash
# Sourced by the scripts of this folder.
#
#   each_minute DESCRIBE COMMAND...
#
# runs a command. While it runs, what the command DESCRIBE prints goes to stderr every minute, or
# every $HEARTBEAT seconds.
#
# The loop reads from a pipe of which the command alone holds the other end. So it ends with the
# command, however that ends, and needs neither a trap nor a process that sleeps.
each_minute() {
  "${@:2}" 9> >(
    while
      code=0
      read -r -t "${HEARTBEAT:-60}" || code=$?
      ((code > 128)) # the time was over; at the end of the pipe the code is 1
    do "$1" >&2 || true; done
  )
}
