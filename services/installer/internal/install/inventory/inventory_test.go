package inventory

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"fairlead.dev/services/installer/internal/install/cluster"
)

func entry(kind, name string) Entry {
	return Entry{ID: cluster.ID{Version: "v1", Kind: kind, Name: name}, Component: "c"}
}

func TestUnionAndDifference(t *testing.T) {
	a, b, c := entry("A", "x"), entry("B", "x"), entry("C", "x")
	newer := a
	newer.Version = "v2"
	if got := Union([]Entry{newer, b}, []Entry{a, c}); !reflect.DeepEqual(got, []Entry{c, newer, b}) {
		t.Errorf("union: %v", got)
	}
	if got := Difference([]Entry{a, c}, []Entry{newer, b}); !reflect.DeepEqual(got, []Entry{c}) {
		t.Errorf("an object of another version is another object: %v", got)
	}
}

func TestRecordIsReadAsItWasWritten(t *testing.T) {
	r := &Record{Revision: "r", Namespace: "n", State: Installed,
		Objects: []Entry{entry("A", "x"), {ID: cluster.Namespace("n"), Adopted: true}}}
	r.Remember(Installation{Hash: "1", Profile: "demo", Spec: map[string]any{"hub": "example.com"}})
	r.Remember(Installation{Hash: "2"})
	text, err := r.encode()
	if err != nil {
		t.Fatal(err)
	}
	got := &Record{}
	if err := got.decode(text); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%v: %+v is read as %+v", err, r, got)
	}
	again, err := got.encode()
	if err != nil || string(again) != string(text) {
		t.Errorf("the same record is other bytes: %v", err)
	}
	for name, broken := range map[string]string{"no gzip": "x", "cut": string(text[:len(text)/2]), "nothing": ""} {
		if err := (&Record{}).decode([]byte(broken)); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

func TestPastIsBounded(t *testing.T) {
	r := &Record{}
	for i := range 10 {
		r.Remember(Installation{Hash: fmt.Sprint(i)})
		r.Remember(Installation{Hash: fmt.Sprint(i)})
	}
	if len(r.Past) != maxPast || r.Past[0].Hash != "8" || r.Past[4].Hash != "4" || r.Hash != "9" {
		t.Errorf("%+v", r)
	}
}

func TestWhatFailedIsRecordedAndTheWayBackIsWhatWasCompleted(t *testing.T) {
	hashes := func(all []Installation) string {
		var out []string
		for _, i := range all {
			text := i.Hash
			if i.Failed {
				text += " failed"
			}
			out = append(out, text)
		}
		return strings.Join(out, ", ")
	}
	r := &Record{}
	r.Begin(Installation{Hash: "first"})
	if got := hashes(r.Earlier()); got != "" || r.Now().Hash != "first" || r.State != Applying {
		t.Errorf("while the first is applied: %q, %+v", got, r)
	}
	r.Remember(Installation{Hash: "first"})
	for _, name := range []string{"bad", "worse"} {
		r.Begin(Installation{Hash: name})
		r.Begin(Installation{Hash: name}) // once more
		if r.Now().Hash != name || r.Earlier()[0].Hash != "first" {
			t.Errorf("while %s is applied: %+v", name, r)
		}
	}
	if got := hashes(r.Earlier()); got != "first, bad failed" {
		t.Errorf("after two that failed: %q", got)
	}
	r.Begin(Installation{Hash: "first"})
	r.Remember(Installation{Hash: "first"})
	if got := hashes(r.Earlier()); got != "worse failed" || r.Now().Hash != "first" || r.State != Installed {
		t.Errorf("after the way back: %q, %+v", got, r)
	}
	r.Begin(Installation{Hash: "good"})
	r.Remember(Installation{Hash: "good"})
	if got := hashes(r.Earlier()); got != "first, worse failed" {
		t.Errorf("after one that was completed: %q", got)
	}
}

// noise is text that does not become shorter by compression.
func noise(bytes int) string {
	b := make([]byte, bytes)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(b) // always returns nil
	const digits = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	for i := range b {
		b[i] = digits[b[i]%64]
	}
	return string(b)
}

func TestRecordThatIsTooLarge(t *testing.T) {
	spec := func(bytes int) map[string]any { return map[string]any{"x": noise(bytes)} }
	r := &Record{Revision: "r", Installation: Installation{Hash: "2", Spec: spec(3 << 20)},
		Past: []Installation{{Hash: "1", Spec: spec(3 << 20)}, {Hash: "0", Spec: spec(3 << 20)}}}
	r.Past[1].Spec["y"] = "z" + noise(2<<20)
	if _, err := r.fit(); err != nil || len(r.Past) == 2 {
		t.Errorf("%v; %d past installations", err, len(r.Past))
	}
	err := Fits("r", Installation{Spec: spec(7 << 20)}, nil)
	if err == nil || !strings.Contains(err.Error(), "make the IstioOperator smaller") {
		t.Error(err)
	}
}
