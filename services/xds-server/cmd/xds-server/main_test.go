package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
)

func TestExitCodes(t *testing.T) {
	required := []string{"--config-watcher-address", "127.0.0.1:1", "--ca-address", "127.0.0.1:1", "--root-cert-file", "r", "--ca-token-file",
		"t"}
	with := func(more ...string) []string { return append(append([]string{}, required...), more...) }
	for name, tc := range map[string]struct {
		args []string
		code int
		says []string
	}{
		"unknown flag": {[]string{"--no-such-flag"}, process.ExitUsage, []string{"no-such-flag"}},
		"argument":     {[]string{"now"}, process.ExitUsage, []string{"now"}},
		"nothing":      {nil, process.ExitUsage, []string{"--config-watcher-address", "--ca-address", "--root-cert-file", "--ca-token-file"}},
		"keys alone":   {with("--jwks-file", "x"), process.ExitUsage, []string{"--issuer"}},
		"admin keys":   {with("--admin-jwks-file", "x"), process.ExitUsage, []string{"--admin-issuer"}},
		"trust domain": {with("--trust-domain", "Not Valid"), process.ExitUsage, []string{"--trust-domain"}},
		"identity":     {with("--identity", "x"), process.ExitUsage, []string{"--identity"}},
		"age":          {with("--max-connection-age", "0"), process.ExitUsage, []string{"--max-connection-age"}},
		"peers":        {with("--peers", "xds-server-peers"), process.ExitUsage, []string{"--peers", "host:port"}},
		"log level":    {with("--log-level", "loud"), process.ExitUsage, []string{"--log-level"}},
		"otlp":         {with("--otlp-endpoint", "ftp://x"), process.ExitUsage, []string{"--otlp-endpoint"}},
		"address":      {with("--secure-address", "nowhere:port"), process.ExitFailure, []string{"--secure-address"}},
		"version":      {[]string{"--version"}, process.ExitOK, nil},
		"help":         {[]string{"--help"}, process.ExitOK, nil},
		"no root there": {with("--secure-address", "127.0.0.1:0", "--ops-address", "127.0.0.1:-1", "--root-cert-file",
			filepath.Join(t.TempDir(), "none")), process.ExitFailure, []string{"--ops-address"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command()
			var out bytes.Buffer
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			cmd.SetArgs(tc.args)
			err := cmd.ExecuteContext(t.Context())
			if got := process.ExitCode(err); got != tc.code {
				t.Errorf("exit code %d, want %d (%v)", got, tc.code, err)
			}
			for _, says := range tc.says {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("error %q does not say %q", err, says)
				}
			}
		})
	}
}
