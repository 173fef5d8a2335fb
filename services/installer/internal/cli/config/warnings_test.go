package config_test

import (
	"encoding/json"
	"slices"
	"testing"

	configv1 "fairlead.dev/proto/fairlead/config/v1"
	"fairlead.dev/services/installer/internal/cli/clitest"
)

// TestWritesWarnAboutOtherObjects: a write prints the warnings that it causes about other objects, but not about those
// that the same command deletes.
func TestWritesWarnAboutOtherObjects(t *testing.T) {
	m := clitest.New(t)
	m.SetWarnings(nil, []*configv1.Warning{clitest.WarningAbout("shop", "other", "VirtualService shop/other: no host")})
	name := clitest.File(t, clitest.Object)
	if out, _, err := m.Run("", "config", "apply", "-f", name); err != nil ||
		out != "VirtualService shop/web created\nwarning: now wrong: VirtualService shop/other: no host\n" {
		t.Errorf("apply: %q, %v", out, err)
	}
	if out, _, err := m.Run("", "config", "apply", "-f", name, "--dry-run"); err != nil ||
		out != "VirtualService shop/web configured (dry run)\nwarning: would be wrong: VirtualService shop/other: no host\n" {
		t.Errorf("dry run: %q, %v", out, err)
	}
	out, _, err := m.Run("", "config", "apply", "-f", name, "-o", "json")
	var answer struct{ Broken []string }
	if err != nil || json.Unmarshal([]byte(out), &answer) != nil ||
		!slices.Equal(answer.Broken, []string{"VirtualService shop/other: no host"}) {
		t.Errorf("apply -o json: %q, %v", out, err)
	}
	m.SetWarnings(nil, []*configv1.Warning{clitest.WarningAbout("shop", "web", "VirtualService shop/web: no host"),
		clitest.WarningAbout("bank", "web", "VirtualService bank/web: no host")})
	if out, _, err := m.Run("", "config", "delete", "-f", name); err != nil ||
		out != "VirtualService shop/web deleted\nwarning: now wrong: VirtualService bank/web: no host\n" {
		t.Errorf("delete: %q, %v", out, err)
	}
}
