// Command fairlead runs and operates a Fairlead service mesh. `fairlead help exit-codes` lists its exit codes.
package main

import (
	"context"
	"os"

	"fairlead.dev/pkg/process"

	"fairlead.dev/services/installer/internal/cli"
)

func main() {
	process.Main("fairlead", func(ctx context.Context) error {
		executable, err := os.Executable()
		if err != nil {
			return err
		}
		return cli.Run(ctx, cli.Env{
			In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Executable: executable, Getenv: os.Getenv,
		}, os.Args[1:])
	})
}
