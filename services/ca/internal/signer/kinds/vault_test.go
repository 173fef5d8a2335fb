package kinds

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
	"fairlead.dev/services/ca/internal/signer"
	"fairlead.dev/services/ca/internal/signer/keys/directory"
)

// TestVault: the files of docs/guide/signers-vault.md, and the paths of fields in errors.
func TestVault(t *testing.T) {
	guide, err := os.ReadFile("../../../../../docs/guide/signers-vault.md")
	if err != nil {
		t.Fatal(err)
	}
	env := Env{Deps: signer.Deps{Log: testkit.Logger(t)}}
	files := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(guide, -1)
	if len(files) != 2 {
		t.Fatalf("the guide has %d files", len(files))
	}
	for _, file := range files {
		s, err := Parse(file[1])
		if err != nil {
			t.Errorf("%v in\n%s", err, file[1])
			continue
		}
		if s.Intermediate != nil {
			// There is no Kubernetes here.
			s.Intermediate.Keys = Keys{Directory: &directory.Config{Dir: t.TempDir()}}
		}
		opened, err := Open(s, 1, env)
		if err != nil {
			t.Error(err)
			continue
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := opened.Run(ctx); err != nil {
			t.Error(err)
		}
	}
	const address = "{address: 'https://v', auth: {token: {file: /t}}"
	for text, says := range map[string]string{
		"vault: {}":                           "vault.address: is required",
		"vault: " + address + "}":             "vault.role: is required",
		"vault: " + address + ", token: t}":   "unknown field",
		"vault: {}\nstepCA: {}":               "are set together",
		"intermediate: {keys: {}, vault: {}}": "intermediate.vault.address: is required",
		"intermediate: {keys: {}, vault: " + address + ", role: mesh}}":     "intermediate.vault.role: ",
		"intermediate: {keys: {}, selfSigned: {}, vault: " + address + "}}": "are set together",
	} {
		if _, err := Parse([]byte(header + text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want %q", text, err, says)
		}
	}
}
