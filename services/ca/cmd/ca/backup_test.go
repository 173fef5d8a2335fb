package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"

	"fairlead.dev/pkg/process"
	"fairlead.dev/pkg/testkit"
)

// TestBackupAndRestore loses the directory of a ca that runs, and starts it again from the backup.
func TestBackupAndRestore(t *testing.T) {
	dir := t.TempDir()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	caDir, signer, key, file := filepath.Join(dir, "ca"), filepath.Join(dir, "signer.yaml"), filepath.Join(dir, "key.txt"), filepath.Join(dir, "ca.age")
	testkit.WriteFile(t, key, []byte(identity.String()+"\n"))
	testkit.WriteFile(t, signer, fmt.Appendf(nil, `apiVersion: ca.fairlead.dev/v1
kind: Signer
name: disk
intermediate: {keys: {directory: {dir: %s/keys}}, selfSigned: {}}
`, caDir))
	flags := []string{"--ca-dir", caDir, "--signer-file", signer, "--shutdown-grace", "1s"}
	before := spawn(t, flags...)

	out, err := execute(t, append([]string{"backup", "--recipient", identity.Recipient().String(), "--output", file}, flags...)...)
	if err != nil || !strings.Contains(out, "signer disk") || strings.Count(out, "root with SHA-256") != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := before.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = before.cmd.Wait()
	if err := os.RemoveAll(caDir); err != nil {
		t.Fatal(err)
	}
	restore := []string{"restore", file, "--identity-file", key, "--ca-dir", caDir}
	if out, err := execute(t, restore...); err != nil || !strings.Contains(out, "restored backup of the ca of trust domain cluster.local") {
		t.Fatalf("%v\n%s", err, out)
	}
	after := spawn(t, flags...)
	if !after.roots.Equal(before.roots) {
		t.Error("the restored ca has another root")
	}
	if _, err := execute(t, append(restore, "--force")...); err == nil || !strings.Contains(err.Error(), "is in use by a ca") {
		t.Errorf("beside the restored one: %v", err)
	}
	testkit.NoError(t, after.cmd.Process.Kill())
	_ = after.cmd.Wait()
	if _, err := execute(t, restore...); err == nil || !strings.Contains(err.Error(), "there is a ca already") {
		t.Errorf("over the restored one: %v", err)
	}
	if _, err := execute(t, append(restore, "--trust-domain", "other")...); err == nil || !strings.Contains(err.Error(), "trust domain") {
		t.Errorf("of another trust domain: %v", err)
	}
}

// `fairlead ca backup` runs `ca backup` with the arguments that the ca has.
func TestBackupTakesTheFlagsOfTheDeployment(t *testing.T) {
	text, err := os.ReadFile("../../../../deploy/kustomize/base/ca/deployment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"backup", "--recipient", "age1"}
	for line := range strings.Lines(string(text)) {
		if flag, ok := strings.CutPrefix(strings.TrimSpace(line), "- --"); ok {
			args = append(args, "--"+flag)
		}
	}
	if _, err := execute(t, args...); err == nil || !strings.Contains(err.Error(), "recipients of the backup") || len(args) < 10 {
		t.Errorf("with %d arguments: %v", len(args), err)
	}
}

func TestBackupFlags(t *testing.T) {
	dir := t.TempDir()
	short, open := filepath.Join(dir, "short"), filepath.Join(dir, "open")
	testkit.WriteFile(t, short, []byte("short\n"))
	testkit.WriteFile(t, open, []byte("correct horse battery\n"))
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	for says, args := range map[string][]string{
		"never plain":                {"backup", "--ca-dir", dir},
		"--passphrase-file excludes": {"backup", "--ca-dir", dir, "--passphrase-file", open, "--recipient", "age1"},
		"fewer than 12":              {"backup", "--ca-dir", dir, "--passphrase-file", short},
		"everybody on this machine":  {"backup", "--ca-dir", dir, "--passphrase-file", open},
		"recipients of the backup":   {"backup", "--ca-dir", dir, "--recipient", "ssh-ed25519 AAAA"},
		"--ca-dir: is required":      {"backup", "--recipient", "age1pq", "--recipients-file", "/dev/null"},
		"one of --identity-file":     {"restore", short, "--ca-dir", dir},
		"accepts 1 arg(s)":           {"restore", "--ca-dir", dir},
	} {
		if says == "--ca-dir: is required" {
			identity, err := age.GenerateX25519Identity()
			if err != nil {
				t.Fatal(err)
			}
			args = []string{"backup", "--recipient", identity.Recipient().String()}
		}
		_, err := execute(t, args...)
		if err == nil || !strings.Contains(err.Error(), says) || process.ExitCode(err) != process.ExitUsage {
			t.Errorf("%v: exit code %d, %v; want %q", args, process.ExitCode(err), err, says)
		}
	}
}
