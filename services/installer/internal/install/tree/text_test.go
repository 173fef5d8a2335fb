package tree

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	yaml "go.yaml.in/yaml/v2"
)

// TestTextIsTheLibrarys holds that a tree that is written in pieces has the bytes that the library writes at once.
func TestTextIsTheLibrarys(t *testing.T) {
	divided := 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's draw
		v := drawTree(r, 6)
		want, err := yaml.Marshal(toYAML(v))
		if err != nil {
			t.Fatal(err)
		}
		for _, limit := range []int{1, 2, 5, 20, pieceNodes} {
			w := writer{limit: limit}
			if err := w.write(nil, v); err != nil {
				t.Fatal(err)
			}
			if w.out.String() != string(want) {
				t.Fatalf("seed %d, at most %d nodes:\n%s\nwant\n%s", seed, limit, w.out.String(), want)
			}
			if len(w.begun) > 0 {
				divided++
			}
		}
	}
	if divided < 1000 {
		t.Errorf("only %d of the trees were divided", divided)
	}
}

func drawTree(r *rand.Rand, depth int) any {
	words := []string{
		"", "a", "true", "null", "12", "1.5", "~", "- x", "key: value", "# no comment", "ä", "a10", "a9", "x-kubernetes-int-or-string",
		"with space", "'", "\"", "*", "?", "no", "0x1F", "\t",
		strings.Repeat("a long text that is folded, ", 9), "several\nlines\n", "  indented\n\nlines", "ends\n\n", strings.Repeat("k", 70),
		strings.Repeat("w", 200),
	}
	word := func() string { return words[r.IntN(len(words))] }
	if depth == 0 {
		return word()
	}
	switch r.IntN(8) {
	case 0, 1, 2:
		m := Map{}
		for range r.IntN(6) {
			k := word()
			if r.IntN(2) == 0 {
				k = fmt.Sprintf("key%d", r.IntN(30))
			}
			m[k] = drawTree(r, depth-1)
		}
		return m
	case 3, 4:
		list := []any{}
		for range r.IntN(5) {
			list = append(list, drawTree(r, depth-1))
		}
		return list
	case 5:
		return []any{nil, true, 3.0, 1.5, 1e21}[r.IntN(5)]
	}
	return word()
}
