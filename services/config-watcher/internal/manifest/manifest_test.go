package manifest

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	docs, problems := Parse("m.yaml",
		[]byte("# head\n\n---\n# note\na: 1\nb:\n- c: {d: e}\n---\n\n---\n{\"a\": \"---\"}\n--- # comment\na: |\n  text\n  --- not a "+
			"divider\n---\n- 1\n---\na: [\n---\nx: 1\nx: 2\n"))
	var got []string
	for _, d := range docs {
		got = append(got, fmt.Sprint(d.Location(), d.Tree))
	}
	want := "m.yaml:5map[a:1 b:[map[c:map[d:e]]]] m.yaml:11map[a:---] m.yaml:13map[a:text\n--- not a divider\n]"
	if strings.Join(got, " ") != want {
		t.Errorf("got %q", got)
	}
	for _, w := range []string{"m.yaml:17: document is no object", "m.yaml:19: not valid YAML",
		`m.yaml:22: not valid YAML: key "x" already set`} {
		if !strings.Contains(problems.Error(), w) {
			t.Errorf("%q is missing in %s", w, problems.Error())
		}
	}
	for path, want := range map[string]string{"b[0].c.d": "m.yaml:7", "b[0].missing": "m.yaml:7", "b": "m.yaml:6", "": "m.yaml:5",
		"zzz": "m.yaml:5"} {
		if got := docs[0].FieldLocation(path); got != want {
			t.Errorf("%q is at %s, want %s", path, got, want)
		}
	}
}

func TestLists(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"List": {"apiVersion: v1\nkind: List\nitems:\n- kind: A\n  x: 1\n- kind: B\n  x: 1\n",
			"m.yaml:4 A x at m.yaml:5, m.yaml:6 B x at m.yaml:7"},
		"behind text": {"# one\n---\n# two\nkind: List\nitems:\n\n- kind: A\n  x: 1\n", "m.yaml:7 A x at m.yaml:8"},
		"of one kind": {"apiVersion: g/v1\nkind: AList\nitems:\n- x: 1\n", "m.yaml:4 A x at m.yaml:4"},
		"in a List": {"kind: List\nitems:\n- kind: List\n  items:\n  - kind: A\n    x: 1\n- kind: B\n",
			"m.yaml:5 A x at m.yaml:6, m.yaml:7 B x at m.yaml:7"},
		"JSON":    {"{\"kind\": \"List\", \"items\": [\n{\"kind\": \"A\", \"x\": 1}]}", "m.yaml:2 A x at m.yaml:2"},
		"empty":   {"kind: List\nitems: []\n", ""},
		"no List": {"kind: AllowList\nspec: {}\n", "m.yaml:1 AllowList x at m.yaml:1"},
	} {
		t.Run(name, func(t *testing.T) {
			docs, problems := Parse("m.yaml", []byte(c.text))
			var got []string
			for _, d := range docs {
				got = append(got, fmt.Sprintf("%s %s x at %s", d.Location(), d.Tree["kind"], d.FieldLocation("x")))
			}
			if strings.Join(got, ", ") != c.want || len(problems) > 0 {
				t.Errorf("%q %v", got, problems)
			}
		})
	}
	for text, want := range map[string]string{
		"kind: List\nitems: {}\n":           "items: not a list",
		"kind: List\nitem: []\n":            "items: not a list",
		"kind: List\nitems:\n- a: 1\n- 2\n": "m.yaml:4: List: items[1]: not an object",
	} {
		if _, problems := Parse("m.yaml", []byte(text)); !strings.Contains(problems.Error(), want) {
			t.Errorf("%q: %v", text, problems)
		}
	}
}

func TestEmpty(t *testing.T) {
	for text, want := range map[string]bool{"": true, " \n\n": true, "# a\n---\n# b\n...\n": true, "a: 1": false, "---\n{": false} {
		if Empty([]byte(text)) != want {
			t.Errorf("%q", text)
		}
	}
}

func TestMerges(t *testing.T) {
	const base = "base: &base {a: 1, b: {c: 2}}\n"
	for name, c := range map[string]struct{ text, want string }{
		"merged":                    {"x: {<<: *base, d: 3}\n", "map[a:1 b:map[c:2] d:3]"},
		"overridden":                {"x:\n  <<: *base\n  a: 4\n", "map[a:4 b:map[c:2]]"},
		"several":                   {"x: {<<: [{a: 5}, *base], b: 6}\n", "map[a:5 b:6]"},
		"overridden twice":          {"x: {<<: *base, a: 4, a: 5}\n", `key "a" already set`},
		"a merge that is not first": {"x: {a: 4, <<: *base}\n", `key "a" already set`},
	} {
		t.Run(name, func(t *testing.T) {
			docs, problems := Parse("f", []byte(base+c.text))
			got := problems.Error()
			if len(docs) == 1 {
				got += fmt.Sprint(docs[0].Tree["x"])
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	for name, content := range map[string]string{
		"flow nesting":  "a: " + strings.Repeat("[", 100_000),
		"block nesting": strings.Repeat("- ", 100_000) + "x",
		"huge document": "a: " + strings.Repeat("x", MaxDocumentBytes),
		"alias bomb": "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d " +
			"[*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g " +
			"[*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
	} {
		if docs, problems := Parse("f", []byte(content)); len(problems) != 1 {
			t.Errorf("%s: %d documents, problems %v", name, len(docs), problems)
		}
	}
}

func TestFieldPaths(t *testing.T) {
	if got := Field(Field("spec", "headers"), "x-user"); got != `spec.headers["x-user"]` {
		t.Error(got)
	}
}
