package credential_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	secretv1 "fairlead.dev/proto/fairlead/secret/v1"
	"fairlead.dev/services/xds-server/internal/credential"
)

// TestNothingShows: whatever is done to a credential by mistake does not tell the key.
func TestNothingShows(t *testing.T) {
	c := credential.New(&secretv1.Credential{PrivateKey: []byte("telltale")})
	if string(c.Key()) != "telltale" {
		t.Fatal("no key")
	}
	type holder struct{ C *credential.Credential }
	encoded, err := json.Marshal(holder{c})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "credential", c, "holder", holder{c})
	for how, text := range map[string]string{
		"%v": fmt.Sprintf("%v", c), "%+v": fmt.Sprintf("%+v", c), "%#v": fmt.Sprintf("%#v", c), "%s": fmt.Sprintf("%s", c),
		"%x":     fmt.Sprintf("%x", c),
		"within": fmt.Sprintf("%+v", holder{c}), "JSON": string(encoded), "log": log.String(),
	} {
		if strings.Contains(text, "telltale") || strings.Contains(text, fmt.Sprintf("%x", "telltale")) || !strings.Contains(text, "redacted") {
			t.Errorf("%s: %s", how, text)
		}
	}
}

func TestNamespaceOf(t *testing.T) {
	for identity, want := range map[string]string{
		"spiffe://cluster.local/ns/shop/sa/web":   "shop",
		"spiffe://cluster.local/ns/shop/sa/web/x": "",
		"spiffe://cluster.local/shop/ns/sa/web":   "",
		"spiffe://cluster.local":                  "",
		"":                                        "", "shop": "",
	} {
		if got := credential.NamespaceOf(identity); got != want {
			t.Errorf("%s: %q, want %q", identity, got, want)
		}
	}
}

func TestSet(t *testing.T) {
	ref := credential.Ref{Identity: "i", Name: "n"}
	known := map[credential.Ref]*credential.Credential{ref: nil}
	s := credential.NewSet(known)
	known[credential.Ref{}] = nil
	if c, ok := s.Get(ref); c != nil || !ok || s.Len() != 1 {
		t.Errorf("known to be absent: %v %v, %d", c, ok, s.Len())
	}
	if _, ok := (*credential.Set)(nil).Get(ref); ok || (*credential.Set)(nil).Len() != 0 {
		t.Error("the empty set knows something")
	}
}
