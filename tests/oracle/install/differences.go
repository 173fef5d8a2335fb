package install

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Side says who differs, and how.
type Side int

// The three ways to differ.
const (
	// Stricter: Fairlead refuses, istioctl generates.
	Stricter Side = iota
	// Laxer: istioctl refuses, Fairlead generates.
	Laxer
	// Objects: both generate, and objects differ.
	Objects
)

// Difference is a row of docs/reference/install-differences.md: an outcome that is not istioctl's on purpose.
type Difference struct {
	Side Side
	// What differs, and the Reason, as the page says them.
	What, Reason string
	// Message matches what the side that refuses says; of Objects, what Fairlead says in a warning, or the inputs.
	Message *regexp.Regexp
	// Touched matches the objects that may differ.
	Touched *regexp.Regexp
	// Example is a case of the corpus that shows it.
	Example string
}

func row(side Side, what, reason, message, touched, example string) Difference {
	return Difference{side, what, reason, regexp.MustCompile(message), regexp.MustCompile(touched), example}
}

// Differences are all of them.
var Differences = []Difference{
	row(Stricter, "gateways without a name", "istioctl makes objects that are called `null`.", `an enabled item needs a name`, "",
		"gateway-no-name"),
	row(Stricter, "two gateways of one name in one namespace", "istioctl keeps one of them in silence.", `is the name of item`, "",
		"gateway-twice"),
	row(Stricter, "files of another kind or version",
		"istioctl installs the profile alone, as if the file were not there, or reads a version that does not exist.", `only IstioOperator of`,
		"", "other-kind"),
	row(Stricter, "keys that are there twice", "istioctl takes the last in silence.", `already set in map`, "", "key-twice"),
	row(Stricter, "`minAvailable` with `maxUnavailable`", "Kubernetes refuses a PodDisruptionBudget with both.", `exclude each other`, "",
		"budget-both"),
	row(Stricter, "hubs with a scheme, or with empty parts", "No runtime can pull such an image.", `is no registry with a path`, "",
		"hub-empty-part"),
	row(Laxer, "bare specs", "A file may hold the spec alone, with a warning.", `Object 'Kind' is missing`, "", "bare-spec"),
	row(Laxer, "`status`", "An IstioOperator that was read from a cluster has one; it is not read, with a warning.", `unknown field "status"`,
		"", "status"),
	row(Laxer, "`addonComponents`", "Releases up to 1.7 had it; it has no effect, with a warning.", `unknown field "addonComponents"`, "",
		"addons"),
	row(Laxer, "`defaultNamespace`", "An older form of `values.global.istioNamespace`, with a warning.", `unknown field "defaultNamespace"`,
		"", "default-namespace"),
	row(Laxer, "`variant` of a component", "hub, tag and variant are said in one place.", `unknown field "variant"`, "", "variant"),
	row(Laxer, "`imagePullSecrets`, `podLabels`, `podSecurityContext`, `topologySpreadConstraints` of `k8s`",
		"What Pods have, Kubernetes settings can say.",
		`unknown field "(imagePullSecrets|podLabels|podSecurityContext|topologySpreadConstraints)"`, "", "spread"),
	row(Laxer, "gateways as a mapping of names", "An older form of the list, with a warning.", `cannot unmarshal object into .*Gateways`, "",
		"gateways-mapping"),
	row(Laxer, "`--set path=null`", "It removes what files say; for istioctl it is the text `null`.",
		`cannot unmarshal string into|failed to convert`, "", "set-null"),
	row(Laxer, "`--force` with a field of `k8s` that has another type",
		"istioctl's passes over its checks, but not over its types; here all that validation refuses becomes warnings.",
		`cannot unmarshal (bool|number( [^ ]+)?) into Go struct field`, "", "force-type"),
	row(Laxer, "files in which a list of gateways is null", "istioctl panics.", `panic: interface conversion`, "", "null-list"),
	row(Objects, "`namespace`", "istioctl reads it and ignores it; here it is an older form of `values.global.istioNamespace`, with a "+
		"warning.", `namespace is an older form`, "", "namespace"),
	row(Objects, "`volumes` and `volumeMounts` of `k8s`", "istioctl reads them and ignores them; here they take effect.",
		`\bvolume(s|Mounts)\b`, `^(Deployment|DaemonSet) `, "volumes"),
	row(Objects, "`replicaCount` and `strategy` of a DaemonSet",
		"A DaemonSet has no such fields, and the API server refuses them; here they are warnings.", `a DaemonSet has no such field`,
		`^DaemonSet `, "daemonset-replicas"),
	row(Objects, "enablement in values", "istioctl ignores it; here it enables and disables the component, with a warning.",
		`is an older form of components\.`, "", "enabled-in-values"),
	row(Objects, "`hub: null`", "istioctl makes images of the registry `<nil>`; here null is absent.", `(?m)(hub|tag): null`, "", "null-hub"),
	row(Objects, "`service`, `hpaSpec` or `podDisruptionBudget` of `k8s` that is null",
		"istioctl removes the whole spec, and Kubernetes refuses what is left; here it is a warning.", `without a spec cannot be`,
		`^(Service|HorizontalPodAutoscaler|PodDisruptionBudget) `, "null-service"),
	row(Objects, "tags with a trailing zero, or of digits alone",
		"istioctl reads the tag 1.10 of a component as the number 1.1; here a tag in `--set` is text.", `\.tag=[0-9.]+`,
		`^(ConfigMap|Deployment|DaemonSet) `, "tag-number"),
	row(Objects, "`k8s.service.ports` of a gateway without `targetPort`",
		"istioctl writes `targetPort: 0`, which Kubernetes refuses; here it is left out.", `\.service\.ports\[|ports:`, `^Service `, "port-zero"),
	row(Objects, "overlays that remove a field of what is not there",
		"istioctl makes the empty parents; here nothing changes, with a warning.", `is not there, so that nothing changes`, "",
		"overlay-remove-nothing"),
	row(Objects, "overlays whose selector has dots", "istioctl divides it at the dots and finds nothing; here brackets keep it together.",
		`path: .*\[[^\]]*\.[^\]]*\]`, "", "overlay-dots"),
}

// Explain finds the row of a difference, the first of several; nil if no row is about something that differs.
func Explain(c Case, istio, ours Outcome, differing []string) *Difference {
	side, said := Objects, ours.Said+c.Text()
	switch {
	case ours.Refused != "" && istio.Refused == "":
		side, said = Stricter, ours.Refused
	case istio.Refused != "" && ours.Refused == "":
		side, said = Laxer, istio.Refused
	}
	var rows []*Difference
	for i := range Differences {
		if d := &Differences[i]; d.Side == side && d.Message.MatchString(said) {
			rows = append(rows, d)
		}
	}
	for _, id := range differing {
		if !slices.ContainsFunc(rows, func(d *Difference) bool { return side != Objects || d.Touched.MatchString(id) }) {
			return nil
		}
	}
	if len(rows) == 0 {
		return nil
	}
	return rows[0]
}

// Page is docs/reference/install-differences.md.
func Page() string {
	var b strings.Builder
	b.WriteString(`# Where an installation is not istioctl's

` + "`fairlead manifest generate --manifests DIR`" + ` gives the objects that ` + "`istioctl manifest generate`" + ` gives from Istio's
own install package, and refuses what it refuses, except for these differences. ` + "`make oracle`" + ` asks both about a
[corpus](../../tests/oracle/install/corpus.yaml) and about random IstioOperators. It fails for a difference that is not
listed, and for a row whose example shows none. Warnings, and the order of objects, are not compared. This page is
generated from the table of the test (` + "`make golden`" + `).
`)
	for _, s := range []struct {
		side  Side
		title string
	}{{Stricter, "Fairlead refuses, istioctl generates"}, {Laxer, "istioctl refuses, Fairlead generates"},
		{Objects, "Both generate, and objects differ"}} {
		fmt.Fprintf(&b, "\n## %s\n\n| what | why | example |\n|---|---|---|\n", s.title)
		for _, d := range Differences {
			if d.Side == s.side {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", d.What, d.Reason, d.Example)
			}
		}
	}
	return b.String()
}
