"""The shim: every file call of a process counted, killed at, failed, recorded; its clock shifted.

`preload.c` runs inside the processes; `build` compiles it; `control` is the memory shared with
them; `environment` puts a process under it; `notes` is what such a process says to it; `log` reads
what they recorded; `calls` holds the words. A supervisor does this:

    with Control.create(folder / "control", watch=database, log=folder / "disk.log") as control:
        control.set_rule(kill(7))
        subprocess.run(argv, env=os.environ | preload_environment(control))
        process = control.processes()[-1]
        for record in read_log(folder / "disk.log"): ...
"""
