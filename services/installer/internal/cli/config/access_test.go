package config_test

import (
	"strings"
	"testing"

	"fairlead.dev/pkg/process"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

func TestWhoAmIAndCanI(t *testing.T) {
	m := clitest.New(t)
	if out, _, err := m.Run("", "config", "whoami"); err != nil ||
		!strings.HasPrefix(out, "spiffe://cluster.local/ns/istio-system/sa/fairlead-admin, by jwt\n") || !strings.Contains(out, "admin   *") {
		t.Errorf("whoami: %q, %v", out, err)
	}
	if out, _, err := m.Run("", "config", "whoami", "-o", "json"); err != nil || !strings.Contains(out, `"role": "admin"`) {
		t.Errorf("whoami -o json: %q, %v", out, err)
	}
	if out, _, err := m.Run("", "config", "bans", "-o", "json"); err != nil || out != "[]\n" {
		t.Errorf("no bans as JSON: %q, %v", out, err)
	}
	if out, _, err := m.Run("", "config", "can-i", "get", "vs", "-n", "shop"); err != nil || out != "yes\n" {
		t.Errorf("can-i get: %q, %v", out, err)
	}
	if _, code, err := m.Run("", "config", "can-i", "delete", "vs", "-n", "shop"); code != process.ExitFailure || err == nil ||
		err.Error() != "no: may not delete VirtualService in shop" {
		t.Errorf("can-i delete: %d, %v", code, err)
	}
}

func TestBanAndUnban(t *testing.T) {
	m := clitest.New(t)
	for name, tc := range map[string]struct{ identity, shown, until string }{
		"short":   {"edge/batch", "ns/edge/sa/batch", "48h"},
		"whole":   {"spiffe://cluster.local/ns/edge/sa/other", "spiffe://cluster.local/ns/edge/sa/other", ""},
		"foreign": {"spiffe://elsewhere/ns/edge/sa/other", "spiffe://elsewhere/ns/edge/sa/other", ""},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"config", "ban", tc.identity, "--reason", "stolen"}
			if tc.until != "" {
				args = append(args, "--until", tc.until)
			}
			out, _, err := m.Run("", args...)
			if err != nil || !strings.Contains(out, " is banned until ") {
				t.Fatalf("ban: %q, %v", out, err)
			}
			out, _, err = m.Run("", "config", "bans")
			if err != nil || !strings.Contains(out, "stolen") || !strings.Contains(out, tc.shown) {
				t.Errorf("bans: %q, %v", out, err)
			}
			if out, _, err = m.Run("", "config", "bans", "-o", "yaml"); err != nil || !strings.Contains(out, "reason: stolen") {
				t.Errorf("bans -o yaml: %q, %v", out, err)
			}
			if out, _, err = m.Run("", "config", "unban", tc.identity); err != nil || !strings.HasSuffix(out, " is no longer banned\n") {
				t.Errorf("unban: %q, %v", out, err)
			}
			if _, code, err := m.Run("", "config", "unban", tc.identity); code != process.ExitFailure ||
				!strings.Contains(err.Error(), "is not banned here") {
				t.Errorf("unban again: %d, %v", code, err)
			}
		})
	}
	for _, wrong := range []string{"batch", "a/b/c", "spiffe://cluster.local/batch", "https://cluster.local/ns/a/sa/b"} {
		if _, code, err := m.Run("", "config", "ban", wrong); code != process.ExitUsage {
			t.Errorf("%s: %d, %v", wrong, code, err)
		}
	}
}

func TestAudit(t *testing.T) {
	m := clitest.New(t)
	line := `{"seq":7,"time":"2030-01-01T00:00:00Z","identity":"spiffe://cluster.local/ns/ops/sa/x","address":"127.0.0.1:5","call":"Apply","result":"refused","code":"PermissionDenied","suppressed":3,"objects":[{"verb":"apply","kind":"Gateway","namespace":"edge","name":"web"}],"prev":""}`
	m.SetAudit(&configv1.ListAuditResponse{Lines: []string{line}, Verified: "1 lines, 7 to 7"})
	out, _, err := m.Run("", "config", "audit", "-n", "5", "--verify")
	if err != nil || !strings.Contains(out, "refused (PermissionDenied), after 3 more   apply Gateway edge/web") ||
		!strings.Contains(out, "the chain holds: 1 lines, 7 to 7") {
		t.Errorf("audit: %q, %v", out, err)
	}
	if out, _, err = m.Run("", "config", "audit", "-o", "json"); err != nil || out != line+"\n" {
		t.Errorf("json: %q, %v", out, err)
	}
	m.SetAudit(&configv1.ListAuditResponse{Broken: "audit.log:3: line 4 does not follow line 2"})
	if _, code, err := m.Run("", "config", "audit", "--verify"); code != process.ExitFailure ||
		!strings.Contains(err.Error(), "line 4 does not follow line 2") {
		t.Errorf("broken: %d, %v", code, err)
	}
}
