package oracle

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fairlead.dev/tests/internal/process"
)

// Case is a small mesh that both analyses are asked about.
type Case struct {
	// Name is "<file>: <case>", as in "references: gateway-unknown".
	Name, YAML string
}

// Cases reads the hand-written meshes of tests/oracle/analysis. A line "#### name" begins each.
func Cases(root string) ([]Case, error) {
	files, err := filepath.Glob(filepath.Join(root, "tests", "oracle", "analysis", "*.yaml"))
	if err != nil {
		return nil, err
	}
	var out []Case
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		for i, part := range strings.Split("\n"+string(text), "\n#### ") {
			if i == 0 {
				continue
			}
			title, body, _ := strings.Cut(part, "\n")
			out = append(out, Case{strings.TrimSuffix(filepath.Base(name), ".yaml") + ": " + title, body + "\n"})
		}
	}
	return out, nil
}

var (
	ownNames   = regexp.MustCompile(`\b(shop|bank|edge)\b`)
	ownDomains = regexp.MustCompile(`\bexample\.(com|org)\b`)
)

// In makes the case the n-th of several in one mesh: its namespaces, labels and hosts are its own.
func (c Case) In(n int) Case {
	text := ownNames.ReplaceAllString(c.YAML, fmt.Sprintf("c%d-$1", n))
	return Case{c.Name, ownDomains.ReplaceAllString(text, fmt.Sprintf("c%d.example.$1", n))}
}

// Of are the messages about the n-th case of one mesh, see Case.In.
func (a Analyses) Of(n int) Analyses {
	return a.pick(func(f Found) bool { return strings.Contains(f.Origin, fmt.Sprintf(" c%d-", n)) })
}

var ofAny = regexp.MustCompile(` c\d+-`)

// NotOfOthers leaves out the messages about other cases than the n-th.
func (a Analyses) NotOfOthers(n int) Analyses {
	return a.pick(func(f Found) bool {
		return !ofAny.MatchString(f.Origin) || strings.Contains(f.Origin, fmt.Sprintf(" c%d-", n))
	})
}

func (a Analyses) pick(which func(Found) bool) Analyses {
	of := func(list []Found) []Found {
		return slices.DeleteFunc(slices.Clone(list), func(f Found) bool { return !which(f) })
	}
	return Analyses{of(a.Istio), of(a.Ours)}
}

// Shared reports whether a case has objects that several cases cannot have at once: those of the whole cluster, and of
// the root namespace. A case with the comment "# alone" is about what its file lacks.
func (c Case) Shared() bool {
	return strings.Contains(c.YAML, "# alone") || strings.Contains(c.YAML, "istio-system") ||
		strings.Contains(c.YAML, "WebhookConfiguration") || strings.Contains(c.YAML, "CustomResourceDefinition")
}

// Found is one message: Istio's code, or Fairlead's where Istio has none, and the object as "Kind namespace/name".
type Found struct{ Code, Origin string }

// Kind is that of the message's object.
func (f Found) Kind() string {
	kind, _, _ := strings.Cut(f.Origin, " ")
	return kind
}

// Analyses are the messages of both about one mesh, each once and sorted.
type Analyses struct{ Istio, Ours []Found }

// Only lists the messages that one side has alone.
func (a Analyses) Only() (istio, ours []Found) {
	without := func(list, others []Found) []Found {
		return slices.DeleteFunc(slices.Clone(list), func(f Found) bool { return slices.Contains(others, f) })
	}
	return without(a.Istio, a.Ours), without(a.Ours, a.Istio)
}

// Analyze asks both. istio and ours are further arguments: files, or flags for an API server.
func Analyze(ctx context.Context, istioctl, watcher string, istio, ours []string) (Analyses, error) {
	var out Analyses
	var err error
	if out.Istio, err = told(ctx, istioctl, append([]string{"analyze", "-A", "-o", "json"}, istio...)); err != nil {
		return out, err
	}
	out.Ours, err = told(ctx, watcher, append([]string{"analyze", "-A", "-o", "json"}, ours...))
	return out, err
}

// told runs an analysis. Its exit codes 0, 65 and 79 are results.
func told(ctx context.Context, program string, args []string) ([]Found, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null")
	answer, err := process.Ask(cmd)
	if err != nil {
		return nil, err
	}
	if !slices.Contains([]int{0, 65, 79}, answer.Code) {
		return nil, fmt.Errorf("%s %s: exit code %d: %s", program, strings.Join(args, " "), answer.Code, answer.Said)
	}
	printed := answer.Out
	// istioctl prints its log before the result.
	if i := strings.Index("\n"+printed, "\n["); i >= 0 {
		printed = printed[i:]
	}
	var list []Found
	if err := json.Unmarshal([]byte(printed), &list); err != nil {
		return nil, fmt.Errorf("%s prints %.300q: %w", program, printed, err)
	}
	slices.SortFunc(list, func(a, b Found) int { return strings.Compare(a.Code+" "+a.Origin, b.Code+" "+b.Origin) })
	return slices.Compact(list), nil
}

// Unlisted lists the messages that one side has alone and for which no row gives a reason, and the rows that were used.
// With files alone istioctl leaves out the checks of rows with FilesOnly.
func (a Analyses) Unlisted(files bool) (out []string, rows []int) {
	istio, ours := a.Only()
	for _, side := range []struct {
		name string
		list []Found
		ours bool
	}{{"istioctl", istio, false}, {"Fairlead", ours, true}} {
		for _, f := range side.list {
			i := slices.IndexFunc(AnalysisDifferences, func(d AnalysisDifference) bool { return d.covers(f, side.ours, files, a) })
			if i < 0 {
				out = append(out, fmt.Sprintf("%s alone: %s %s", side.name, f.Code, f.Origin))
			} else {
				rows = append(rows, i)
			}
		}
	}
	return out, rows
}

// Shown records which cases show which rows.
type Shown map[string]bool

// Add records that a case shows rows.
func (s Shown) Add(c Case, rows []int) {
	for _, i := range rows {
		s[fmt.Sprint(i, c.Name)] = true
	}
}

// Stale lists the rows whose example does not show them: of rows for files alone, or of the others.
func (s Shown) Stale(files bool) (out []string) {
	for i, d := range AnalysisDifferences {
		if d.FilesOnly == files && !s[fmt.Sprint(i, d.Example)] {
			out = append(out, fmt.Sprintf("no difference in %q, the example of %q: correct the example, or remove the row", d.Example, d.What))
		}
	}
	return out
}

// AnalysisDifference is a row of docs/reference/analysis-differences.md: a message that one analysis has alone.
type AnalysisDifference struct {
	// Ours is true if Fairlead has the message alone.
	Ours bool
	// FilesOnly is true for a difference that only files without an API server show.
	FilesOnly bool
	// Codes are the codes of the message, with spaces between; Kinds the kinds of its object, "" for all.
	Codes, Kinds string
	// Beside is a code that the other side has about the same object, or if it is the message's own, about another one;
	// "" for none.
	Beside string
	// What and Reason are for the page, Example is a case that shows it.
	What, Reason, Example string
}

func (d AnalysisDifference) covers(f Found, ours, files bool, a Analyses) bool {
	if d.Ours != ours || d.FilesOnly && !files || !slices.Contains(strings.Fields(d.Codes), f.Code) ||
		d.Kinds != "" && !slices.Contains(strings.Fields(d.Kinds), f.Kind()) {
		return false
	}
	other := a.Ours
	if ours {
		other = a.Istio
	}
	return d.Beside == "" || slices.ContainsFunc(other,
		func(o Found) bool { return o.Code == d.Beside && (o.Origin == f.Origin || d.Beside == f.Code) })
}

// AnalysisPage is docs/reference/analysis-differences.md.
func AnalysisPage() string {
	var b strings.Builder
	b.WriteString(`# Where the analysis is not Istio's

` + "`fairlead analyze` finds what `istioctl analyze` finds, under the codes of [findings](findings.md), except for these " +
		"differences.\n`make oracle` asks both about [small meshes](../../tests/oracle/analysis) for each code, and about random ones; `make " +
		"test-kube`\n" +
		"does the same with the objects in an API server. They fail for a difference that is not listed. What differs in the verdict on\none " +
		"object is in [validation differences](validation-differences.md). This page is generated from the table of the test (`make golden`).\n")
	section := func(title string, ours bool) {
		fmt.Fprintf(&b, "\n## %s\n\n| code | kind | what | why | example |\n|---|---|---|---|---|\n", title)
		for _, d := range AnalysisDifferences {
			if d.Ours != ours {
				continue
			}
			kinds := "all"
			if d.Kinds != "" {
				kinds = strings.Join(strings.Fields(d.Kinds), ", ")
			}
			example := "–"
			if file, name, ok := strings.Cut(d.Example, ": "); ok {
				example = fmt.Sprintf("[%s](../../tests/oracle/analysis/%s.yaml)", name, file)
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", strings.Join(strings.Fields(d.Codes), ", "), kinds, d.What, d.Reason, example)
		}
	}
	section("Fairlead tells, Istio does not", true)
	section("Istio tells, Fairlead does not", false)
	return b.String()
}
