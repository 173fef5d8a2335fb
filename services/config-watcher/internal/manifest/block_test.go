package manifest

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"fairlead.dev/pkg/yamltext"
)

var documents = flag.Int("documents", 20_000, "how many documents TestRandomBlocks decodes")

// same decodes a text with decodeBlock, and fails if the library decodes it otherwise. It reports whether decodeBlock
// did not give up.
func same(t *testing.T, text string) bool {
	t.Helper()
	tree, ok := decodeBlock([]byte(text), texts{})
	if !ok {
		return false
	}
	want, err := toTree([]byte(text))
	if err != nil || !reflect.DeepEqual(any(tree), want) {
		t.Errorf("%q is decoded as\n%#v, by the library as\n%#v, %v", text, tree, want, err)
	}
	js, err := AppendJSON(nil, tree)
	if want, wantErr := json.Marshal(tree); !bytes.Equal(js, want) || err != nil || wantErr != nil {
		t.Errorf("%q is encoded as\n%s, by the library as\n%s, %v, %v", text, js, want, err, wantErr)
	}
	return true
}

// lines joins the lines of a document; "/" divides them.
func lines(text string) string { return strings.ReplaceAll(text, "/", "\n") + "\n" }

// ordinary are documents in the part of YAML that block knows.
var ordinary = []string{
	"a: b", "a: b/c: d", "a:/  b: c/d: e", "a:/- b/- c", "a:/  - b/  - c/d: e", "a:/- b: c/  d: e/- f: g", "a:/-/  b: c/-/- d",
	"a:/- - b/  - c/- - d",
	"a:/b: 1", "a:/-/- b", "# c//a: b # d/  # e/  /f: 'g' # h/i: \"\" # j/k: # l/  m: n/    # o/p: q#r", "  a: b/  c: d",
	"a: {}/b: []/c: {} # d", "a:   b  /c: d   e",
	"a: 0/b: 1/c: 65535/d: 9223372036854775807/e: 0.0.0.0:80/f: 10.0.0.1/g: 100m/h: 5xx/i: 1s/j: 0:1/k: 128Mi/l: 2026-01-31T00:00:00Z/m: 1:20",
	"a: true/b: no/c: y/d: null/e: On/f: Y/g: trues/h: nulls", `a: "true"/b: '1'/c: "#"/d: ": "/e: '"'/f: "'"/g: "<&>"/h: "*.com"`,
	"a: b:c/d: http:b/e: f{}[],&*!|>%@'\"g",
	"app.kubernetes.io-name: a/b_c: d/e-f.g: h/i9: j", "-a: 1/b: 2"[1:], "a: 1/a1: 2", "a:/  - b:/    - c/    d: e",
}

// unusual are documents that block must leave to the library, valid or not.
var unusual = []string{
	"", "a", "- a", "a: b/a: c", "a: b/  c", "a: b/# c/  d", "a:/  b: c/ d: e", "a: b/ c: d", "a:/- b/c", "a:/  - b/ - c", "a: b/- c",
	"a: b: c", "a: b:", "a:b", "a : b", "? a", "\"a\": b",
	"a: &b c", "a: *b", "a: !!str b", "a: |/  b", "a: >/  b", "a: {b: c}", "a: [b]", "a: 'b''c'", `a: "b\n"`, `a: "b/  c"`, "a: 'b", "a: 'b'c",
	"a: 'b'#c", "a: {}#b", "<<: a", "y: a", "on: a", "null: a", "1: a",
	"a: ~", "a: .5", "a: 1.5", "a: 1e3", "a: 1_000", "a: 0x1f", "a: 017", "a: 0b1", "a: 00", "a: -1", "a: +1", "a: 2026-01-31",
	"a: 9223372036854775808", "a: @", "a: `", "a: %", "a: -", "a: - b",
	"a:\tb", "a: b\t", "a: b\r", "a: \u00fc", "a: \u0085", "a: \x7f", "...", "a: b/...", "%YAML 1.1", "a: - b/  - c", "-/a: b", "a:/  -b",
}

func TestBlock(t *testing.T) {
	for _, text := range ordinary {
		if !same(t, lines(text)) {
			t.Errorf("%q is left to the library", text)
		}
		same(t, strings.TrimSuffix(lines(text), "\n"))
	}
	for _, text := range unusual {
		if tree, ok := decodeBlock([]byte(lines(text)), texts{}); ok {
			t.Errorf("%q is decoded as %v", text, tree)
		}
	}
	var deep strings.Builder
	for i := range 1000 {
		deep.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	if !same(t, deep.String()) {
		t.Error("a deep document is left to the library")
	}
	// Texts that occur in several documents are kept once, and only short ones, and not too many.
	known := texts{}
	for i := range maxTexts + 10 {
		if _, ok := decodeBlock([]byte(lines("a: b"+strings.Repeat("c", i))), known); !ok {
			t.Fatal(i)
		}
	}
	if len(known) != maxText+1 {
		t.Errorf("%d texts are kept", len(known))
	}
}

// TestRandomBlocks puts documents together from pieces of lines, most of which are nearly right.
func TestRandomBlocks(t *testing.T) {
	pieces := []string{
		"a: ", "b:", "a", "c: d", "- ", "-", "  ", " ", "\n", "\n", "\n  ", "\n", "# e", "'f'", "\"g\"", "1", "10.0.0.1", "0", "true", "y: ",
		"{}", "[]", ":", ": ", "'", "\"", "#", ".", "x/y: ", "---", "~", "?", "|", "&a ", "*a", "e", "_",
	}
	random := rand.New(rand.NewPCG(1, 2))
	decoded := 0
	for range *documents {
		var b strings.Builder
		for range 1 + random.IntN(20) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		if same(t, b.String()) {
			decoded++
		}
	}
	if decoded < *documents/100 {
		t.Errorf("only %d of %d documents were decoded", decoded, *documents)
	}
}

// FuzzBlock holds what decodeBlock decodes against the library, which decode would ask if decodeBlock gave up.
func FuzzBlock(f *testing.F) {
	for _, text := range append(ordinary, unusual...) {
		f.Add(lines(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) < 1<<12 && yamltext.Check([]byte(text)) == nil && !tooDeep([]byte(text)) {
			same(t, text)
		}
	})
}
