package manifest

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	docs, problems := Parse("m.yaml", []byte("# head\n\n---\n# note\na: 1\nb:\n- c: {d: e}\n---\n\n---\n{\"a\": \"---\"}\n--- # comment\na: |\n  text\n  --- not a divider\n---\n- 1\n---\na: [\n---\nx: 1\nx: 2\n"))
	var got []string
	for _, d := range docs {
		got = append(got, fmt.Sprint(d.Location(), d.Tree))
	}
	want := "m.yaml:5map[a:1 b:[map[c:map[d:e]]]] m.yaml:11map[a:---] m.yaml:13map[a:text\n--- not a divider\n]"
	if strings.Join(got, " ") != want {
		t.Errorf("got %q", got)
	}
	for _, w := range []string{"m.yaml:17: document is no object", "m.yaml:19: not valid YAML", `m.yaml:22: not valid YAML: key "x" already set`} {
		if !strings.Contains(problems.Error(), w) {
			t.Errorf("%q is missing in %s", w, problems.Error())
		}
	}
	for path, want := range map[string]string{"b[0].c.d": "m.yaml:7", "b[0].missing": "m.yaml:7", "b": "m.yaml:6", "": "m.yaml:5", "zzz": "m.yaml:5"} {
		if got := docs[0].FieldLocation(path); got != want {
			t.Errorf("%q is at %s, want %s", path, got, want)
		}
	}
}

func TestLists(t *testing.T) {
	docs, problems := Parse("m.yaml", []byte("apiVersion: v1\nkind: List\nitems:\n- a: 1\n- a: 2\n"))
	if len(docs) != 2 || len(problems) != 0 || docs[1].FieldLocation("a") != "m.yaml:5" {
		t.Errorf("%v %v", docs, problems)
	}
	if _, problems := Parse("", []byte("apiVersion: v1\nkind: List\nitems: {}\n")); !strings.Contains(problems.Error(), "items: not a list") {
		t.Error(problems.Error())
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
		"alias bomb":    "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n",
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
