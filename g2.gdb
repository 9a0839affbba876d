set pagination off
set confirm off
set breakpoint pending on
set print thread-events off
catch load _core
run
delete
rbreak ::moments_of_rows<
rbreak ::store_and_take<
commands
silent
info symbol $pc
end
continue
