package lastgood

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
)

var binding = Binding{Identity: "spiffe://cluster.local/ns/shop/sa/web", Node: "sidecar~10.0.0.1~web-0.shop~shop", Roots: []byte("roots")}

func TestSealedTextIsOpened(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	file, err := Seal([]byte("key"), binding, now, []byte("text"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := Seal([]byte("key"), binding, now, []byte("text"))
	if err != nil || bytes.Equal(file, again) || bytes.Contains(file, []byte("text")) {
		t.Errorf("%v: sealed twice it is the same, or it can be read", err)
	}
	text, at, err := Open([]byte("key"), binding, now.Add(time.Hour), time.Hour, file)
	if err != nil || string(text) != "text" || !at.Equal(now) {
		t.Errorf("opened %q of %s, %v", text, at, err)
	}
	for name, tc := range map[string]struct {
		key  string
		of   Binding
		now  time.Time
		want error
	}{
		"another key":                   {"other", binding, now, ErrCorrupt},
		"another identity":              {"key", Binding{"spiffe://cluster.local/ns/shop/sa/db", binding.Node, binding.Roots}, now, ErrForeign},
		"another node":                  {"key", Binding{binding.Identity, "sidecar~10.0.0.2~web-0.shop~shop", binding.Roots}, now, ErrForeign},
		"other roots":                   {"key", Binding{binding.Identity, binding.Node, []byte("others")}, now, ErrForeign},
		"fields that run into another":  {"key", Binding{binding.Identity + "s", binding.Node[1:], binding.Roots}, now, ErrForeign},
		"too old":                       {"key", binding, now.Add(time.Hour + time.Second), ErrOld},
		"sealed long after now":         {"key", binding, now.Add(-time.Hour - time.Second), ErrOld},
		"a clock that is at its begin":  {"key", binding, time.Unix(0, 0), ErrOld},
		"a clock far in the next epoch": {"key", binding, time.Unix(1<<40, 0), ErrOld},
	} {
		if _, _, err := Open([]byte(tc.key), tc.of, tc.now, time.Hour, file); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	for n := range file {
		if _, _, err := Open([]byte("key"), binding, now, time.Hour, file[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("the first %d bytes: %v", n, err)
		}
		changed := bytes.Clone(file)
		changed[n] ^= 1
		if _, _, err := Open([]byte("key"), binding, now, time.Hour, changed); !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrForeign) {
			t.Fatalf("byte %d changed: %v", n, err)
		}
	}
}

func TestSecretIsThePrivateKey(t *testing.T) {
	pki := testkit.PKI(t)
	secret := func(ns, sa string) []byte {
		m, err := pki.NewSVID(ns, sa).Current()
		if err != nil {
			t.Fatal(err)
		}
		s, err := Secret(m)
		again, err2 := Secret(m)
		if err := errors.Join(err, err2); err != nil || len(s) < 32 || !bytes.Equal(s, again) {
			t.Fatalf("%d bytes, %v", len(s), err)
		}
		return s
	}
	if bytes.Equal(secret("shop", "web"), secret("shop", "web")) {
		t.Error("two keys have one secret")
	}
	roots, err := pki.RootsOnly().Current()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Secret(roots); err == nil {
		t.Error("no certificate has a secret")
	}
}

// FuzzOpen opens files of anybody's making, and what they would contain if they had been sealed rightly.
func FuzzOpen(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	c := contents{}
	c.of(clusterType).resources["a"] = named("a", "1", []byte("body"))
	file, err := Seal([]byte("key"), binding, now, c.encode())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(file)
	f.Add(c.encode())
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		text, _, err := Open([]byte("key"), binding, now, time.Hour, data)
		if err == nil && !bytes.Equal(data, file) && !bytes.Equal(text, c.encode()) {
			t.Fatal("a file was opened that was never sealed")
		}
		decoded, err := decode(data)
		if err != nil {
			return
		}
		again, err := decode(decoded.encode())
		if err != nil || again.size() != decoded.size() || len(again) != len(decoded) {
			t.Fatalf("%d bytes of %d types became %d of %d: %v", decoded.size(), len(decoded), again.size(), len(again), err)
		}
	})
}
