package oracle

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Difference is a row of docs/reference/validation-differences.md: a verdict that is not Istio's on purpose.
type Difference struct {
	// Kinds of objects, with spaces between.
	Kinds string
	// Field or subject, as the page names it.
	What string
	// Message matches what the side that refuses says.
	Message *regexp.Regexp
	// Reason says in a sentence why the difference is good.
	Reason string
	// Example is an object of the corpus that shows it, "gateway: no-hosts". It is empty where istioctl's verdict on
	// the same object varies from run to run.
	Example string
}

// choice is said of two members of a oneof. istioctl keeps one of them and never sees the other, so that nothing else
// that is said of such an object can be compared.
var choice = regexp.MustCompile(`cannot be set together with`)

// stricter is what Fairlead refuses and Istio accepts.
func stricter(kinds, what, message, reason, example string) Difference {
	return Difference{kinds, what, regexp.MustCompile(message), reason, example}
}

// laxer is what Istio refuses and Fairlead accepts.
func laxer(kinds, what, message, reason, example string) Difference {
	return Difference{kinds, what, regexp.MustCompile(message), reason, example}
}

// covers tells whether the row is about something that is said of a kind.
func (d Difference) covers(kind, message string) bool {
	return slices.Contains(strings.Fields(d.Kinds), kind) && d.Message.MatchString(message)
}

// explain finds the rows for what one side says against an object that the other accepts. Every sentence must have one:
// a listed reason must not hide another.
func explain(b Both) (rows []int, direction string, unlisted []string) {
	table, said := Stricter, b.Ours
	direction = "Fairlead refuses, Istio accepts"
	if len(b.Istio) > 0 {
		table, said, direction = Laxer, b.Istio, "Istio refuses, Fairlead accepts"
	}
	if i := slices.IndexFunc(said, choice.MatchString); i >= 0 {
		said = said[i : i+1]
	}
	for _, sentence := range said {
		i := slices.IndexFunc(table, func(d Difference) bool { return d.covers(b.Kind(), sentence) })
		if i < 0 {
			unlisted = append(unlisted, sentence)
		} else {
			rows = append(rows, i)
		}
	}
	return rows, direction, unlisted
}

// Page is docs/reference/validation-differences.md.
func Page() string {
	var b strings.Builder
	b.WriteString(`# Where the verdict is not Istio's

Fairlead accepts an object if ` + "`istioctl validate`" + ` accepts it, and refuses it if istioctl refuses it, except for these
differences. ` + "`make oracle`" + ` asks both about every object of this repository, a [corpus](../../tests/oracle/corpus) for each
rule, and random objects. It fails for a difference that is not listed, and for a row whose example shows none. It does
not compare warnings. This page is generated from the table of the test (` + "`make golden`" + `).

Kubernetes judges two things, as in Istio: names, labels and annotations of objects (istioctl does not look at them,
config-watcher does), and Kubernetes' own kinds. MeshConfig is not compared, because istioctl has no command that
judges it.
`)
	section := func(title, text string, rows []Difference) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| kind | what | why | example |\n|---|---|---|---|\n", title, text)
		for _, d := range rows {
			example := "–"
			if file, object, ok := strings.Cut(d.Example, ": "); ok {
				example = fmt.Sprintf("[%s](../../tests/oracle/corpus/%s.yaml)", object, file)
			}
			kinds := strings.Join(strings.Fields(d.Kinds), ", ")
			if d.Kinds == traffic {
				kinds = "all"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", kinds, d.What, d.Reason, example)
		}
	}
	section("Fairlead refuses, Istio accepts", "The message of the refusal says what to write instead.", Stricter)
	section("Istio refuses, Fairlead accepts", "Such an object works here and does not get past Istio's webhook.", Laxer)
	return b.String()
}
