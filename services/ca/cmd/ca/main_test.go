package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
)

func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := command()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestExitCodes(t *testing.T) {
	empty := t.TempDir()
	for name, tc := range map[string]struct {
		args []string
		code int
		says string
	}{
		"unknown flag": {[]string{"--no-such-flag"}, process.ExitUsage, "no-such-flag"},
		"argument":     {[]string{"now"}, process.ExitUsage, "now"},
		"nothing":      {nil, process.ExitUsage, "--ca-dir: is required"},
		"log level": {[]string{"--ca-dir", "a", "--jwks-file", "b", "--issuer", "c", "--log-level", "loud"}, process.ExitUsage,
			"--log-level"},
		"otlp": {[]string{"--ca-dir", "a", "--jwks-file", "b", "--issuer", "c", "--otlp-endpoint", "ftp://x"}, process.ExitUsage,
			"--otlp-endpoint"},
		"no directory": {[]string{"--ca-dir", filepath.Join(empty, "a", "b"), "--jwks-file", "b", "--issuer", "c"}, process.ExitFailure,
			"parent directory"},
		"root-cert nowhere": {[]string{"root-cert"}, process.ExitUsage, "--ca-dir"},
		"root-cert empty":   {[]string{"root-cert", "--ca-dir", empty}, process.ExitFailure, "no root in"},
		"version":           {[]string{"--version"}, process.ExitOK, ""},
		"help":              {[]string{"--help"}, process.ExitOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := execute(t, tc.args...)
			if got := process.ExitCode(err); got != tc.code {
				t.Errorf("exit code %d, want %d (%v)", got, tc.code, err)
			}
			if err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %q does not say %q", err, tc.says)
			}
		})
	}
}
