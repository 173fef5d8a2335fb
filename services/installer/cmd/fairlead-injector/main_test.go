package main

import (
	"context"
	"io"
	"testing"

	"fairlead.dev/pkg/process"
)

func TestExitCodes(t *testing.T) {
	given := []string{"--ca-address", "ca:1", "--ca-token-file", "t", "--root-cert-file", "r"}
	for name, c := range map[string]struct {
		args []string
		want int
	}{
		"help":             {[]string{"--help"}, process.ExitOK},
		"version":          {[]string{"--version"}, process.ExitOK},
		"unknown flag":     {[]string{"--no-such-flag"}, process.ExitUsage},
		"argument":         {[]string{"something"}, process.ExitUsage},
		"missing flags":    {nil, process.ExitUsage},
		"wrong identity":   {append(given, "--identity", "injector"), process.ExitUsage},
		"default revision": {append(given, "--revision", "default"), process.ExitUsage},
		"no kubeconfig":    {append(given, "--kubeconfig", "/does/not/exist"), process.ExitUsage},
		"wrong log level":  {append(given, "--log-level", "loud"), process.ExitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command()
			cmd.SetArgs(c.args)
			cmd.SetOut(io.Discard)
			cmd.SetErr(io.Discard)
			if got := process.ExitCode(cmd.ExecuteContext(context.Background())); got != c.want {
				t.Errorf("exit code %d, want %d", got, c.want)
			}
		})
	}
}
