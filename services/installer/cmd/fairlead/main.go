// Command fairlead runs and operates a Fairlead service mesh; `fairlead help exit-codes` lists its exit codes. Its
// rooms are below internal: cli is the command line; local and the packages below it are the local runtime of `fairlead
// up`; configapi, opsclient and envoyadmin are the clients with which commands ask config-watcher, operations ports and
// Envoys; objectfile reads files of objects.
package main

import (
	"context"
	"os"

	"fairlead.dev/pkg/process"
	"fairlead.dev/services/installer/internal/cli"
	"fairlead.dev/services/installer/internal/cli/command"
)

func main() {
	process.Main("fairlead", func(ctx context.Context) error {
		executable, err := os.Executable()
		if err != nil {
			return err
		}
		return cli.Run(ctx, command.Env{
			In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Executable: executable, Getenv: os.Getenv,
		}, os.Args[1:])
	})
}
