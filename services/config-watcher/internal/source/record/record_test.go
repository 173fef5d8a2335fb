package record

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fairlead.dev/services/config-watcher/internal/object"
)

var (
	secretKey = object.Key{Kind: "Secret", Namespace: "apps", Name: "tls"}
	plainKey  = object.Key{Group: "networking.istio.io", Kind: "Gateway", Namespace: "apps", Name: "edge"}
)

func newKey() string {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key)
	return base64.StdEncoding.EncodeToString(key)
}

// keys writes the lines into a key file and reads it.
func keys(t testing.TB, lines ...string) *Keys {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("# keys\n\n"+strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := ReadKeys(path)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestRoundTrip(t *testing.T) {
	content := `{"a":"<&>","b":"` + "\u2028" + `"}`
	for _, c := range []Codec{{}, {Sealer: keys(t, newKey())}} {
		for _, k := range []object.Key{secretKey, plainKey} {
			line, err := c.Encode(Record{Key: k, File: "mesh/a.yaml", Line: 7, Content: []byte(content)})
			if err != nil {
				t.Fatal(err)
			}
			if hidden := !strings.Contains(string(line), content); hidden != (k == secretKey && c.Sealer != nil) {
				t.Errorf("%s: %s", k, line)
			}
			got, err := c.Decode(line)
			if err != nil || got.Key != k || got.File != "mesh/a.yaml" || got.Line != 7 || string(got.Content) != content || !c.Current(got) {
				t.Errorf("%+v %v", got, err)
			}
		}
	}
}

// TestDamageIsFound changes, removes and cuts every byte of a record: Decode returns an error or the original, never
// anything else.
func TestDamageIsFound(t *testing.T) {
	c := Codec{Sealer: keys(t, newKey())}
	for _, k := range []object.Key{secretKey, plainKey} {
		line, err := c.Encode(Record{Key: k, File: "a.yaml", Line: 3, Content: []byte(`{"spec":{"mode":"STRICT"}}`)})
		if err != nil {
			t.Fatal(err)
		}
		check := func(damaged []byte, what string, at int) {
			t.Helper()
			got, err := c.Decode(damaged)
			same := got.Key == k && got.File == "a.yaml" && got.Line == 3 && string(got.Content) == `{"spec":{"mode":"STRICT"}}`
			if err == nil && !same {
				t.Errorf("%s: %s at %d is read as %+v", k, what, at, got)
			}
			if err != nil && !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: %s at %d: %v", k, what, at, err)
			}
		}
		for i := range line {
			for bit := range 8 {
				damaged := append([]byte(nil), line...)
				damaged[i] ^= 1 << bit
				check(damaged, "bit", i)
			}
			check(line[:i], "cut", i)
			check(append(append([]byte(nil), line[:i]...), line[i+1:]...), "removal", i)
		}
	}
}

func TestRotation(t *testing.T) {
	old, next := newKey(), newKey()
	before, during, after := Codec{keys(t, old)}, Codec{keys(t, next, old)}, Codec{keys(t, next)}
	line, err := before.Encode(Record{Key: secretKey, Content: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := during.Decode(line)
	if err != nil || during.Current(r) {
		t.Fatalf("%+v %v", r, err)
	}
	again, err := during.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := after.Decode(again); err != nil || !after.Current(r) {
		t.Errorf("%+v %v", r, err)
	}
	for _, c := range []Codec{after, {}} {
		if _, err := c.Decode(line); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "Secret apps/tls") ||
			errors.Is(err, ErrDamaged) {
			t.Errorf("without the key: %v", err)
		}
	}
	if r, err := (Codec{}).Decode([]byte(`{}`)); !errors.Is(err, ErrDamaged) {
		t.Errorf("%+v %v", r, err)
	}
}

// TestContentBelongsToItsObject: encrypted content of one Secret in the record of another is refused, even with a
// correct checksum.
func TestContentBelongsToItsObject(t *testing.T) {
	k := keys(t, newKey())
	sealed, err := k.Seal(k.Key(), []byte(`{"mine":1}`), context(wire{Key: wireKeyOf(secretKey)}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.Open(k.Key(), sealed, context(wire{Key: wireKey{Kind: "Secret", Namespace: "other", Name: "tls"}})); !errors.Is(err,
		ErrDamaged) {
		t.Errorf("got %v", err)
	}
}

func TestReadKeysRefuses(t *testing.T) {
	key := newKey()
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"readable by others": {key, 0o640, "chmod 0600"},
		"empty":              {"# nothing\n", 0o600, "holds no key"},
		"short":              {"AAAA", 0o600, ":1: not a key of 32 bytes"},
		"no encoding":        {strings.Repeat("!", 44), 0o600, ":1: not a key"},
		"twice":              {key + "\n" + key, 0o600, ":2: the same key twice"},
		"too long":           {strings.Repeat("#", maxKeyFileBytes+1), 0o600, "more than 16384 bytes"},
	} {
		path := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadKeys(path); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	c := Codec{Sealer: keys(f, newKey())}
	for _, k := range []object.Key{secretKey, plainKey} {
		line, err := c.Encode(Record{Key: k, Content: []byte(`{}`)})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(line)
	}
	f.Fuzz(func(_ *testing.T, line []byte) { _, _ = c.Decode(line) })
}
