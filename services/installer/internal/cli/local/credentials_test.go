package local

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/process"
	"fairlead.dev/proto/fairlead/runstate"
	"fairlead.dev/services/installer/internal/local/tokens"
)

// TestCredentialsOfNobody: a name that no service account can have leaves no file.
func TestCredentialsOfNobody(t *testing.T) {
	for _, account := range []string{"../x", "a/b/c"} {
		out := filepath.Join(t.TempDir(), "out")
		namespace, name, _ := strings.Cut(account, "/")
		err := writeCredentials(t.Context(), &runstate.State{TrustDomain: "cluster.local", RunDir: t.TempDir()},
			tokens.Subject{Namespace: namespace, Account: name}, out, time.Hour)
		if process.ExitCode(err) != process.ExitUsage {
			t.Errorf("%s: %v", account, err)
		}
		if _, err := os.Stat(out); !os.IsNotExist(err) {
			t.Errorf("%s: %s was made", account, out)
		}
	}
}
