package finding

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fairlead.dev/pkg/testkit"
)

// TestReferencePage: docs/reference/findings.md equals the lists of codes.
func TestReferencePage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# What is found about objects in their mesh

Generated from config-watcher's lists of codes by ` + "`make golden`" +
		`. An object can be valid, and still refer to what is not there, or be left without an effect by an
older one. That is no reason to refuse it, since the missing part may come later: it is a warning, and it goes when what it is about is mended. Where warnings are told: [errors](../guide/errors.md#warnings).

` + "`fairlead analyze` tells of all of them with the severity in the table, and of more that it takes a whole mesh, Deployments or " +
		"annotations to see: [guide](../guide/analyze.md).\n" +
		"A code is suppressed by its name or by Istio's code, that of the message with which `istioctl analyze` tells of the same.\n")
	section := func(title, text string, rows []Description) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| code | severity | found | until it is mended | Istio |\n|---|---|---|---|---|\n", title, text)
		for _, d := range rows {
			fmt.Fprintf(&b, "| <a id=\"%s\"></a>`%s` | %s | %s | %s | %s |\n", d.Code.Anchor(), d.Code, d.Severity, d.About, d.Effect,
				dash(d.Istio))
		}
	}
	section("In a running mesh", "`fairlead config apply`, `fairlead up` and the status of objects tell of these as warnings; the code "+
		"stands at the end of the line.", OfRunningMesh)
	section("In a whole analysis", "`fairlead analyze` alone tells of these.", OfWholeMesh)
	b.WriteString("\n## Istio's messages\n\nEach message that Istio publishes (https://istio.io/latest/docs/reference/config/analysis/), " +
		"with the codes above or why there is none.\n" +
		"Where the two tell of it differently: [analysis differences](analysis-differences.md).\n\n| Istio | here |\n|---|---|\n")
	for _, code := range istioCodes() {
		fmt.Fprintf(&b, "| %s | %s |\n", code, here(code))
	}
	testkit.Golden(t, "../../../../../docs/reference/findings.md", []byte(b.String()))
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// istioCodes lists the codes of Istio that have a row, sorted.
func istioCodes() []string {
	var out []string
	for _, d := range Descriptions() {
		if d.Istio != "" {
			out = append(out, d.Istio)
		}
	}
	for _, e := range Elsewhere() {
		out = append(out, e.Code)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// here says what stands for a code of Istio.
func here(code string) string {
	var ours []string
	for _, d := range Descriptions() {
		if d.Istio == code {
			ours = append(ours, fmt.Sprintf("[%s](#%s)", d.Code, d.Code.Anchor()))
		}
	}
	for _, e := range Elsewhere() {
		if e.Code == code {
			ours = append(ours, e.Name+": "+e.Why)
		}
	}
	return strings.Join(ours, ", ")
}

// TestDescriptionsAreComplete: each code has one description, and each code in the source is described.
func TestDescriptionsAreComplete(t *testing.T) {
	known := map[string]bool{}
	for _, d := range Descriptions() {
		if known[string(d.Code)] || d.About == "" || d.Effect == "" || d.Severity == "" {
			t.Errorf("incomplete or twice: %+v", d)
		}
		known[string(d.Code)] = true
	}
	source, err := os.ReadFile("code.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`Code = "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		if !known[m[1]] {
			t.Errorf("%s is not described", m[1])
		}
	}
}

// TestEveryCodeOfIstioHasARow: the codes IST0101 to IST0177 are each ours, explained or retired, and no two of these.
func TestEveryCodeOfIstioHasARow(t *testing.T) {
	for n := 101; n <= 177; n++ {
		code := fmt.Sprintf("IST%04d", n)
		rows := 0
		if slices.ContainsFunc(Descriptions(), func(d Description) bool { return d.Istio == code }) {
			rows++
		}
		if slices.ContainsFunc(Elsewhere(), func(e Reason) bool { return e.Code == code && e.Name != "" && e.Why != "" }) {
			rows++
		}
		if slices.Contains(Retired, code) {
			rows++
		}
		if rows != 1 {
			t.Errorf("%s has %d rows", code, rows)
		}
	}
}
