package yamltext

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// fill repeats a piece between a beginning and an end until there are n bytes.
func fill(begin, piece, end string, n int) string {
	return begin + strings.Repeat(piece, (n-len(begin)-len(end))/len(piece)) + end
}

// levels is the classic: nine aliases of nine aliases, depth times.
func levels(depth int) string {
	var b strings.Builder
	b.WriteString("l0: &l0 [x,x,x,x,x,x,x,x,x]\n")
	for i := range depth {
		fmt.Fprintf(&b, "l%d: &l%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*l%d,", i), 9), ","))
	}
	return b.String()
}

// chain is maps of which each merges the one before.
func chain(length int) string {
	var b strings.Builder
	b.WriteString("m0: &m0 {a: 1, b: 2, c: 3, d: 4, e: 5, f: 6, g: 7, h: 8}\n")
	for i := range length {
		fmt.Fprintf(&b, "m%d: &m%d {<<: *m%d, k%d: x}\n", i+1, i+1, i, i)
	}
	return b.String()
}

// TestCheck refuses texts that grow, naming the line, and what it allocates on the way is in proportion to the text:
// the heap cannot grow by more.
func TestCheck(t *testing.T) {
	const mib = 1 << 20
	for name, tc := range map[string]struct {
		text string
		want string // "" if it is fine
		line int
		// times the text's length is what a check may allocate, above a constant.
		times uint64
	}{
		"a long text a thousand times": {fill("a: &a "+strings.Repeat("x", mib-8000)+"\nb:\n- [", "*a,", "]\n", mib),
			"*a stands for 1040578 bytes and 1 values each time; use fewer aliases", 3, 10},
		"a short text very often":   {fill("a: &a "+strings.Repeat("x", 1400)+"\nb: [", "*a,", "]", mib), "and aliases (*name)", 1, 0},
		"nine of nine":              {levels(9), "*l8 stands for", 10, 0},
		"nine of nine, forty times": {levels(40), "has more bytes than there are", 14, 0},
		"merges of merges":          {chain(2000), "*m1999 stands for", 2001, 0},
		"an alias of itself":        {"a: &a\n- [*a]\n", "*a is part of what it stands for", 2, 0},
		"nodes of two bytes":        {fill("a: [", "1,", "1]", 3*mib), "values or more, more than 393216", 1, 0},
		"too many bytes":            {strings.Repeat("x", MaxBytes+1), "3145729 bytes, more than 3145728", 1, 0},
		"UTF-16":                    {"\xff\xfea\x00:\x00", "write it in UTF-8", 1, 0},
		"aliases that are no YAML":  {"a: &a 1\nb: *a\nc: [", "not valid YAML", 3, 0},

		"an ordinary alias":                 {"a: &a {b: 1}\nc: [*a, *a]\nd: {<<: *a, e: 2}\n", "", 0, 0},
		"a few hundred of them":             {fill("a: &a {b: 1, c: 2, d: 3}\ne:\n", "- *a\n", "", 4000), "", 0, 10},
		"as many addresses as there can be": {fill("a:\n", "- address: 2001:db8::1\n", "", MaxBytes), "", 0, 0},
		"lists of them in JSON":             {fill("{\"a\": [", "\"10.0.0.1\",", "\"1\"]}", MaxBytes), "", 0, 0},
		"text with stars and ampersands":    {fill("a: |\n", "  f(x) && *p | q&r *bold*\n", "", mib), "", 0, 10},
		"wildcards":                         {fill("hosts:\n", "- \"*.example.com\" # a & b\n", "", mib), "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			text := []byte(tc.text)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := Check(text)
			runtime.ReadMemStats(&after)
			if got, most := after.TotalAlloc-before.TotalAlloc, tc.times*uint64(len(text))+4*mib; got > most {
				t.Errorf("%d bytes were allocated for %d, want at most %d", got, len(tc.text), most)
			}
			var e *Error
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (!errors.As(err, &e) || !strings.Contains(err.Error(), tc.want) || e.Line != tc.line):
				t.Errorf("got %+v, want %q in line %d", err, tc.want, tc.line)
			}
		})
	}
}

// TestRefusalIsCheap parses the largest document with aliases that is parsed at all.
func TestRefusalIsCheap(t *testing.T) {
	text := fill("a: &a "+strings.Repeat("x", 1000)+"\nb: [", "*a,", "*a]", 3*maxAliasedIndicators)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := Check([]byte(text))
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "*a stands for") {
		t.Error(err)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 32<<20 {
		t.Errorf("%d bytes were allocated", got)
	}
}

// FuzzCheck holds what scan says against the parser: no text has more nodes, or an alias, than it said.
func FuzzCheck(f *testing.F) {
	for _, text := range []string{
		levels(2), chain(3), "a: &a [*a]", "? a\n: b\n? c", "[a: , ? b, {c}, {}, [],]", "- - ? - a\n", "\"a\":*b", "- !!str &a b\n- *a\n",
		"a:\u2028&b c\u0085d: *b",
		"{\"a\":&b 1,\"c\":*b}", "[&a a,*a]", "--- &a\nb: c", "a: 'it''s' # &x\n", "<<: [*a]\n", "&a : *a", "{? &a b, ?*a}",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := Check([]byte(text))
		var e *Error
		if err != nil && (!errors.As(err, &e) || e.Line < 1 || e.Reason == "" || e.Remedy == "") {
			t.Errorf("incomplete: %+v", err)
		}
		var root yaml.Node
		if len(text) > 1<<16 || parse([]byte(text), &root) != nil {
			return
		}
		indicators, aliased := scan([]byte(text))
		nodes, alias := 0, false
		var count func(*yaml.Node)
		count = func(n *yaml.Node) {
			nodes++
			alias = alias || n.Kind == yaml.AliasNode
			for _, c := range n.Content {
				count(c)
			}
		}
		count(&root)
		if nodes > 3*indicators+2 || alias && !aliased {
			t.Errorf("%d nodes, an alias: %v; said to be %d, %v", nodes, alias, indicators, aliased)
		}
	})
}

func TestItemLines(t *testing.T) {
	for text, want := range map[string][]int{
		"kind: List\nitems:\n- a: 1\n  b: 2\n\n- a: 3\n": {3, 6},
		"# head\n---\n{\"items\": [\n{}, {}]}":           {4, 4},
		"items: 5\n":                                     nil,
		"- items\n":                                      nil,
		"items: [":                                       nil,
		"":                                               nil,
	} {
		if got := ItemLines([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
