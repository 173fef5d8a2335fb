package cabackup

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
)

const record = `{"epoch":2,"lastID":3,"current":{"id":3,"name":"disk","roots":["r"]},"step":"idle","since":"2026-03-01T00:00:00Z",` +
	`"bundle":{"generation":7,"roots":["r"],"own":["r"]},"future":{"a":1}}`

func archive() *Archive {
	return &Archive{Format: format, Program: "1", Made: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), TrustDomain: "cluster.local",
		Record: json.RawMessage(record), Files: []File{{Path: "root/key.pem", Data: []byte("key")}},
		Secrets: []Secret{{Place: Place{"mesh", "keys"}, Data: map[string][]byte{"signer-1-root.pem": []byte("key")}}}}
}

func identity(t testing.TB) *age.X25519Identity {
	t.Helper()
	id, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestSealedArchivesAreOpenedByTheirRecipientsAlone(t *testing.T) {
	first, second := identity(t), identity(t)
	recipients, err := ParseRecipients("# two\n" + first.Recipient().String() + "\n" + second.Recipient().String() + "\n")
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := Seal(archive(), recipients...)
	if err != nil || bytes.Contains(sealed, []byte("root/key")) {
		t.Fatalf("%q, %v", sealed, err)
	}
	for _, id := range []*age.X25519Identity{first, second} {
		ids, err := ParseIdentities(id.String())
		if err != nil {
			t.Fatal(err)
		}
		got, err := Open(sealed, ids...)
		if err != nil || string(got.Files[0].Data) != "key" || string(got.Record) != record {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	if _, err := Open(sealed, identity(t)); err == nil || !strings.Contains(err.Error(), "with this key or passphrase") {
		t.Errorf("another key: %v", err)
	}
	for _, n := range []int{0, 10, len(sealed) / 2, len(sealed) - 1} {
		if _, err := Open(sealed[:n], first); err == nil {
			t.Errorf("the first %d bytes were taken", n)
		}
		if n > 0 {
			changed := bytes.Clone(sealed)
			changed[n] ^= 1
			if _, err := Open(changed, first); err == nil {
				t.Errorf("byte %d was changed, and nobody noticed", n)
			}
		}
	}
}

func TestPassphrases(t *testing.T) {
	recipient, id, err := Passphrase("correct horse battery\nsecond line\n")
	if err != nil {
		t.Fatal(err)
	}
	recipient.(*age.ScryptRecipient).SetWorkFactor(10)
	sealed, err := Seal(archive(), recipient)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(sealed, id); err != nil {
		t.Error(err)
	}
	_, other, err := Passphrase("correct horse batterie")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(sealed, other); err == nil || !strings.Contains(err.Error(), "with this key or passphrase") {
		t.Errorf("another passphrase: %v", err)
	}
	if _, _, err := Passphrase("short\n" + strings.Repeat("x", 50)); err == nil || strings.Contains(err.Error(), "short\n") {
		t.Errorf("a short one: %v", err)
	}
}

func TestParsersQuoteNoKey(t *testing.T) {
	secret := identity(t).String()
	for _, text := range []string{secret + "x", "x" + secret, secret[:40]} {
		if _, err := ParseIdentities(text); err == nil || strings.Contains(err.Error(), secret[20:35]) {
			t.Errorf("%v", err)
		}
	}
	if _, err := ParseRecipients("ssh-ed25519 AAAA"); err == nil {
		t.Error("a key of ssh was taken")
	}
}

func TestBadArchives(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Archive)
		says   string
	}{
		"no trust domain":          {func(a *Archive) { a.TrustDomain = "" }, "trust domain"},
		"no record":                {func(a *Archive) { a.Record = nil }, "the record"},
		"an empty record":          {func(a *Archive) { a.Record = json.RawMessage("{}") }, "no signer in use"},
		"a path upwards":           {func(a *Archive) { a.Files[0].Path = "../key.pem" }, "leads elsewhere"},
		"a path that is not clean": {func(a *Archive) { a.Files[0].Path = "/a/../b/key.pem" }, "leads elsewhere"},
		"another file":             {func(a *Archive) { a.Files[0].Path = "root/authorized_keys" }, "none of a ca's"},
		"a hidden file":            {func(a *Archive) { a.Files[0].Path = "root/.x.pem" }, "none of a ca's"},
		"a bundle elsewhere":       {func(a *Archive) { a.Files[0].Path = "/etc/bundle.json" }, "none of a ca's"},
		"a large file":             {func(a *Archive) { a.Files[0].Data = make([]byte, maxFile+1) }, "more than"},
		"a file twice":             {func(a *Archive) { a.Files = append(a.Files, a.Files[0]) }, "twice"},
		"a bad Secret":             {func(a *Archive) { a.Secrets[0].Name = "a/b" }, "names no Secret"},
		"a bad place":              {func(a *Archive) { a.In = Place{Name: "x"} }, "names no Secret"},
		"another entry":            {func(a *Archive) { a.Secrets[0].Data["token"] = nil }, "is no key"},
		"a Secret twice":           {func(a *Archive) { a.Secrets = append(a.Secrets, a.Secrets[0]) }, "twice"},
		"the record's Secret":      {func(a *Archive) { a.In = a.Secrets[0].Place }, "twice"},
		"a large Secret":           {func(a *Archive) { a.Secrets[0].Data["x.pem"] = make([]byte, maxSecret) }, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			a := archive()
			tc.change(a)
			if _, err := a.Encode(); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("encoded: %v, want %q", err, tc.says)
			}
			text, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Decode(text); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("decoded: %v, want %q", err, tc.says)
			}
		})
	}
	good, err := archive().Encode()
	if err != nil {
		t.Fatal(err)
	}
	for says, text := range map[string]string{
		"use a program of the version": strings.Replace(string(good), `"format":1`, `"format":2`, 1),
		"or of a newer one":            strings.Replace(string(good), `"program"`, `"x":1,"program"`, 1),
		"it is no archive of a ca":     string(good) + "{}",
		"no archive":                   "secret-key",
	} {
		if _, err := Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret-key") {
			t.Errorf("%q: %v", says, err)
		}
	}
}

func TestRestoredRecords(t *testing.T) {
	root, err := os.ReadFile("testdata/root.pem")
	if err != nil {
		t.Fatal(err)
	}
	with := func(epoch, lastID, generation uint64, root string) []byte {
		r := Record{Epoch: epoch, LastID: lastID, Current: Signer{ID: 1, Roots: []string{root}}, Step: "idle"}
		r.Bundle.Generation = generation
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	own := string(root)
	for name, tc := range map[string]struct {
		existing      Existing
		says          string
		epoch, lastID uint64
	}{
		"to an empty place":                   {Existing{}, "", 3, 3},
		"over a ca":                           {Existing{Record: with(0, 1, 1, "other")}, "there is a ca already: the ca's record", 0, 0},
		"over keys":                           {Existing{Parts: []string{"root/key.pem", "b", "c", "d", "e", "f"}}, "root/key.pem, b, c, d, e and 1 more", 0, 0},
		"over another ca by force":            {Existing{Record: with(9, 20, 99, "other"), Force: true}, "", 10, 20},
		"over the same ca by force":           {Existing{Record: with(2, 4, 7, own), Force: true}, "", 3, 4},
		"over an older ca by force":           {Existing{Record: with(2, 1, 6, own), Force: true}, "", 3, 3},
		"over a later bundle":                 {Existing{Record: with(2, 4, 8, own), Force: true}, "is older than the ca that is there", 0, 0},
		"over a later epoch":                  {Existing{Record: with(3, 4, 1, own), Force: true}, "is older than the ca that is there", 0, 0},
		"over what it was restored to before": {Existing{Record: with(3, 3, 7, own), Force: true}, "", 4, 3},
		"over a damaged one by force":         {Existing{Record: []byte("{"), Force: true}, "", 3, 3},
		"over a damaged one":                  {Existing{Record: []byte("{")}, "there is a ca already", 0, 0},
		"with too large numbers":              {Existing{Record: with(1<<63, 4, 1, "other"), Force: true}, "too large", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a := archive()
			a.Record = bytes.ReplaceAll([]byte(record), []byte(`["r"]`), append([]byte("["), append(must(json.Marshal(own))(t), ']')...))
			got, err := a.Restored(tc.existing)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) || errors.Is(err, ErrExists) != strings.Contains(tc.says, "already") &&
					!strings.Contains(name, "keys") {
					t.Errorf("got %v, want %q", err, tc.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r, err := ParseRecord(got)
			if err != nil || r.Epoch != tc.epoch || r.LastID != tc.lastID || r.Bundle.Generation != 7 || len(r.Fingerprints()) != 1 {
				t.Errorf("got %+v, %v", r, err)
			}
			if !strings.Contains(string(got), `"future":{"a":1}`) || !strings.Contains(string(got), `"since":"2026-03-01T00:00:00Z"`) {
				t.Errorf("the ca's own fields are lost: %s", got)
			}
		})
	}
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// FuzzDecode wants no panic, and every archive that is taken to be written as it was read.
func FuzzDecode(f *testing.F) {
	good, err := archive().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"format":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := Decode(text)
		if err != nil {
			return
		}
		again, err := a.Encode()
		if err != nil {
			t.Fatalf("it was read, and cannot be written: %v", err)
		}
		b, err := Decode(again)
		if err != nil || len(b.Files) != len(a.Files) || len(b.Secrets) != len(a.Secrets) {
			t.Errorf("another after writing: %v", err)
		}
		if restored, err := a.Restored(Existing{}); err == nil {
			before, _ := ParseRecord(a.Record)
			if after, err := ParseRecord(restored); err != nil || after.Epoch != before.Epoch+1 {
				t.Errorf("restored as %s, %v", restored, err)
			}
		}
	})
}

// FuzzOpen wants no panic on what is no archive.
func FuzzOpen(f *testing.F) {
	id := identity(f)
	sealed, err := Seal(archive(), id.Recipient())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte("age-encryption.org/v1\n"))
	f.Fuzz(func(t *testing.T, sealed []byte) {
		if a, err := Open(sealed, id); (a == nil) == (err == nil) {
			t.Errorf("got %v, %v", a, err)
		}
	})
}
