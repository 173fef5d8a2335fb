package inject

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Side says which of the two refuses what the other injects; Objects says that both inject, and differ.
type Side int

// The sides.
const (
	Stricter Side = iota
	Laxer
	Objects
)

// Difference is a row of docs/reference/injection-differences.md.
type Difference struct {
	Side
	What, Reason string
	// Example is the name of a case of corpus.yaml that shows it.
	Example string
	// message is found in the error of the one that refuses, or in the document; input in the workload.
	message, input *regexp.Regexp
	// adapt makes istioctl's object as fairlead means it to be; only where both inject.
	adapt func(istio, ours object)
}

var (
	every    = regexp.MustCompile(``)
	injected = regexp.MustCompile(`sidecar\.istio\.io/status`)
)

// Differences are all of them.
var Differences = []Difference{
	{Stricter, "annotations of injection itself that cannot be read",
		"istioctl goes on as if `sidecar.istio.io/status` were not there, and injects a second time.", "status-broken",
		regexp.MustCompile(`annotation sidecar\.istio\.io/status`), every, nil},
	{Stricter, "levels of logs, images, `includeOutboundPorts` and a ConfigMap's name of no use in annotations",
		"istioctl writes them into the Pod as they are, line breaks included; Envoy and the agent end with such a level.", "level-unknown",
		regexp.MustCompile(`annotation (sidecar\.istio\.io/(logLevel|componentLogLevel|agentLogLevel|bootstrapOverride|proxyImage|proxyImageType)|traffic\.sidecar\.istio\.io/includeOutboundPorts)`), every, nil},
	{Laxer, "a ProxyConfig of no use in `proxy.istio.io/config` of a workload that is not injected",
		"istioctl reads it first; no proxy will read it, and the webhook lets the Pod pass.", "config-not-injected",
		regexp.MustCompile(`could not parse proxy config`), regexp.MustCompile(`sidecar.istio.io/inject: "false"|hostNetwork: true`), nil},
	{Objects, "CronJob", "istioctl reads and writes labels and annotations of the Job's template, of which no Pod gets any; here those of " +
		"the Pod's template count.", "cronjob",
		regexp.MustCompile(`(?m)^kind: CronJob$`), every, adaptCronJob},
	{Objects, "workloads of `kube-system` and of Kubernetes' other namespaces",
		"istioctl looks at the namespace of the Pod's template, which is empty; the webhook injects none of them, nor does this.", "kube-system",
		regexp.MustCompile(`(?m)^  namespace: (kube-system|kube-public|kube-node-lease|local-path-storage)$`), every, keepOurs},
	{Objects, "`neverInjectSelector`, `defaultTemplates`, `aliases`, `injectedAnnotations` of the injection configuration",
		"istioctl does not read them from a file, and so gives other Pods than the webhook; here they count.", "injected-annotations",
		regexp.MustCompile(`a\.b/c: d`), every, func(istio, _ object) { annotations(istio)["a.b/c"] = "d" }},
	{Objects, "DeploymentConfig", "istioctl adds the empty fields of its type; here the rest of the object stays as it is.",
		"deploymentconfig",
		regexp.MustCompile(`(?m)^kind: DeploymentConfig$`), every, keepRest},
	{Objects, "own containers, injected a second time",
		"istioctl gives the template's fields the last word then, though `proxy.istio.io/overrides` has the user's; here a second injection " +
			"changes nothing.", "own-again",
		regexp.MustCompile(`proxy\.istio\.io/overrides`), injected, func(istio, ours object) { proxies(istio, ours, keepContainer) }},
	{Objects, "the order of variables, injected a second time",
		"istioctl moves the cluster and the network to the end; here a second injection changes nothing.", "order-again",
		regexp.MustCompile(`ISTIO_META_(NETWORK|CLUSTER_ID)`), injected, func(istio, ours object) { proxies(istio, ours, sortEnv) }},
}

func at(o object, path ...string) object {
	for _, k := range path {
		next, ok := o[k].(object)
		if !ok {
			return object{}
		}
		o = next
	}
	return o
}

func annotations(o object) object { return at(o, "spec", "template", "metadata", "annotations") }

// adaptCronJob moves the metadata to the Pod's template, and takes away what ours was never told to have.
func adaptCronJob(istio, ours object) {
	job, own := at(istio, "spec", "jobTemplate"), at(ours, "spec", "jobTemplate")
	at(job, "spec", "template")["metadata"] = job["metadata"]
	job["metadata"] = own["metadata"]
}

func keepOurs(istio, ours object) {
	for k := range istio {
		istio[k] = ours[k]
	}
}

// keepRest takes the fields of spec beside the template, and the status, from ours.
func keepRest(istio, ours object) {
	spec, own := at(istio, "spec"), at(ours, "spec")
	for k := range spec {
		if k != "template" {
			delete(spec, k)
		}
	}
	for k, v := range own {
		if k != "template" {
			spec[k] = v
		}
	}
	delete(istio, "status")
	if s, ok := ours["status"]; ok {
		istio["status"] = s
	}
}

// podSpecs returns the specs of the Pods of an object.
func podSpecs(o object) []object {
	switch o["kind"] {
	case "Pod":
		return []object{at(o, "spec")}
	case "CronJob":
		return []object{at(o, "spec", "jobTemplate", "spec", "template", "spec")}
	case "List":
		var all []object
		items, _ := o["items"].([]any)
		for _, i := range items {
			item, _ := i.(object)
			all = append(all, podSpecs(item)...)
		}
		return all
	}
	return []object{at(o, "spec", "template", "spec")}
}

// proxies calls change with each container of the templates in istioctl's object, and the one of that name in ours.
func proxies(istio, ours object, change func(istio, ours object)) {
	own := podSpecs(ours)
	for i, spec := range podSpecs(istio) {
		for _, list := range []string{"containers", "initContainers"} {
			theirs, _ := spec[list].([]any)
			here, _ := own[i][list].([]any)
			for _, c := range theirs {
				c, _ := c.(object)
				if name := fmt.Sprint(c["name"]); name == "istio-proxy" || name == "istio-init" || name == "istio-validation" {
					for _, o := range here {
						if o, _ := o.(object); o["name"] == name {
							change(c, o)
						}
					}
				}
			}
		}
	}
}

func keepContainer(istio, ours object) {
	for k := range istio {
		delete(istio, k)
	}
	for k, v := range ours {
		istio[k] = v
	}
}

func sortEnv(istio, ours object) {
	for _, o := range []object{istio, ours} {
		env, _ := o["env"].([]any)
		slices.SortStableFunc(env, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	}
}

// Explain says whether the two differ, and finds the rows that make up for it; without every the difference is not
// listed.
func Explain(c Case, istio, ours Outcome) (differ bool, rows []*Difference, err error) {
	if istio.Refused != "" && ours.Refused != "" || istio.Refused+ours.Refused == "" && istio.Document == ours.Document {
		return false, nil, nil
	}
	if istio.Refused+ours.Refused != "" {
		side, message := Stricter, ours.Refused
		if istio.Refused != "" {
			side, message = Laxer, istio.Refused
		}
		for i := range Differences {
			if d := &Differences[i]; d.Side == side && d.message.MatchString(message) && d.input.MatchString(c.Document) {
				return true, []*Difference{d}, nil
			}
		}
		return true, nil, nil
	}
	var a, b object
	if err := yaml.Unmarshal([]byte(istio.Document), &a); err != nil {
		return true, nil, err
	}
	if err := yaml.Unmarshal([]byte(ours.Document), &b); err != nil {
		return true, nil, err
	}
	for i := range Differences {
		if same(a, b) {
			return len(rows) > 0, rows, nil
		}
		if d := &Differences[i]; d.Side == Objects && d.message.MatchString(ours.Document) && d.input.MatchString(c.Document) {
			d.adapt(a, b)
			rows = append(rows, d)
		}
	}
	if same(a, b) {
		return len(rows) > 0, rows, nil
	}
	return true, nil, nil
}

func same(a, b object) bool {
	x, err1 := yaml.Marshal(a)
	y, err2 := yaml.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// Page is docs/reference/injection-differences.md.
func Page() string {
	var b strings.Builder
	b.WriteString(`# Where an injection is not istioctl's

` + "`fairlead kube-inject`" + ` gives the objects that ` + "`istioctl kube-inject`" + ` gives from the same files, and refuses what it
refuses, except for these differences. ` + "`make oracle`" + ` asks both about a
[corpus](../../tests/oracle/inject/corpus.yaml) and about random workloads, with Istio's own templates and values. It
fails for a difference that is not listed, and for a row whose example shows none. Warnings are not compared. This page
is generated from the table of the test (` + "`make golden`" + `).
`)
	for _, s := range []struct {
		side  Side
		title string
	}{{Stricter, "Fairlead refuses, istioctl injects"}, {Laxer, "istioctl refuses, Fairlead injects"},
		{Objects, "Both accept, and objects differ"}} {
		table := ""
		for _, d := range Differences {
			if d.Side == s.side {
				table += fmt.Sprintf("| %s | %s | %s |\n", d.What, d.Reason, d.Example)
			}
		}
		if table != "" {
			fmt.Fprintf(&b, "\n## %s\n\n| what | why | example |\n|---|---|---|\n%s", s.title, table)
		}
	}
	return b.String()
}
