package attack

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

// aliases is a document of less than 1 MiB whose aliases, written out, would be thousands of times as long.
func aliases(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: edge}\ndata:\n  a: &a %q\n", name,
		strings.Repeat("a", 400_000))
	for i := range 4000 {
		fmt.Fprintf(&b, "  k%d: *a\n", i)
	}
	return b.String()
}

// nested is the same by aliases of aliases.
func nested(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s, namespace: edge}\nspec:\n  l0: &l0 "+
		"[lol, lol, lol, lol, lol, lol, lol, lol, lol, lol]\n", name)
	for i := 1; i < 8; i++ {
		fmt.Fprintf(&b, "  l%d: &l%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d, ", i-1), 10), ", "))
	}
	return b.String()
}

// testAliases: a document that would be far larger than it is long is refused with a reason, from the command line and
// in a file.
func testAliases(t *testing.T, f *fixture) {
	for what, document := range map[string]func(string) string{"aliases of one long text": aliases, "aliases of aliases": nested} {
		t.Run(what, func(t *testing.T) {
			m := f.sample(t, killed)
			file := filepath.Join(t.TempDir(), "bomb.yaml")
			if err := os.WriteFile(file, []byte(document("by-command")), 0o600); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			code, out, errOut := f.CLI(t, "config", "apply", "-f", file)
			if code == 0 || !strings.Contains(errOut, "bomb.yaml") {
				t.Errorf("config apply ended with %d, want a refusal that names the file: %.300s%.300s", code, out, errOut)
			}
			t.Logf("config apply took %s: %.300s", time.Since(start).Round(time.Millisecond), errOut)
			// The command line may have refused it already; an attacker has one of its own.
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err := f.store.Apply(ctx, &configv1.ApplyRequest{
				Documents: []*configv1.Document{{Name: "bomb.yaml", Content: []byte(document("by-call"))}}})
			if status.Code(err) != codes.InvalidArgument && status.Code(err) != codes.ResourceExhausted {
				t.Errorf("config-watcher answers with %v, want a refusal", err)
			}
			t.Logf("config-watcher: %.300v", err)
			f.WriteConfig(t, "bomb.yaml", document("by-file"))
			defer removed(t, filepath.Join(f.ConfigDir, "bomb.yaml"))
			testkit.Eventually(t, 20*time.Second, func() error {
				if log := f.Log(t, "config-watcher"); !strings.Contains(log, "bomb.yaml") {
					return fmt.Errorf("config-watcher's log does not name bomb.yaml")
				}
				return nil
			})
			if _, err := f.change(t.Context(), 98*time.Second+time.Duration(len(what))*time.Millisecond); err != nil {
				t.Errorf("a change beside the bomb: %v", err)
			}
			m.finish(t, f)
		})
	}
}
