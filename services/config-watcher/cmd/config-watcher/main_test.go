package main

import (
	"context"
	"io"
	"testing"

	"fairlead.dev/pkg/process"
)

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want int
	}{
		"help":              {[]string{"--help"}, process.ExitOK},
		"version":           {[]string{"--version"}, process.ExitOK},
		"unknown flag":      {[]string{"--no-such-flag"}, process.ExitUsage},
		"argument":          {[]string{"something"}, process.ExitUsage},
		"missing flag":      {nil, process.ExitUsage},
		"wrong value":       {[]string{"--root-cert-file", "x", "--trust-domain", "Not One"}, process.ExitUsage},
		"wrong identity":    {[]string{"--root-cert-file", "x", "--ca-identity", "ca"}, process.ExitUsage},
		"wrong log level":   {[]string{"--root-cert-file", "x", "--log-level", "loud"}, process.ExitUsage},
		"port that is none": {[]string{"--root-cert-file", "x", "--grpc-address", "127.0.0.1:99999999"}, process.ExitFailure},
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
