package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"fairlead.dev/tests/internal/binaries"
	"fairlead.dev/tests/internal/kubeapi"
	"fairlead.dev/tests/oracle"
)

const root = "../.."

// TestAnalysisIsIstios asks `istioctl analyze` and `config-watcher analyze` about the hand-written meshes in an API
// server, where istioctl runs all of its checks. ISTIO_BIN names the directory of istioctl.
func TestAnalysisIsIstios(t *testing.T) {
	bin := os.Getenv("ISTIO_BIN")
	if bin == "" {
		t.Skip("ISTIO_BIN names no directory with istioctl: run `make test-kube`")
	}
	istioctl, watcher := filepath.Join(bin, "istioctl"), binaries.Built(t, "config-watcher")
	cases, err := oracle.Cases(root)
	if err != nil {
		t.Fatal(err)
	}
	s := kubeapi.Start(t, kubeapi.Options{
		Args: []string{"--disable-admission-plugins=ServiceAccount,MutatingAdmissionWebhook,ValidatingAdmissionWebhook"}})
	s.ApplyCRDs(t)
	s.Apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}`)
	ask := func(t *testing.T) oracle.Analyses {
		t.Helper()
		a, err := oracle.Analyze(t.Context(), istioctl, watcher, []string{"--kubeconfig", s.Kubeconfig},
			[]string{"--kube", "--kubeconfig", s.Kubeconfig})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	before := ask(t)
	var alone []int
	applied := map[int]bool{}
	for i, c := range cases {
		if c.Shared() {
			alone = append(alone, i)
			continue
		}
		if err := apply(t, s, c.In(i).YAML); err != nil {
			t.Logf("%s: the API server refuses it: %v", c.Name, err)
			continue
		}
		applied[i] = true
	}
	together := ask(t)
	shown := oracle.Shown{}
	for i, c := range cases {
		if !applied[i] {
			continue
		}
		t.Run(c.Name, func(t *testing.T) { compare(t, c, together.Of(i), shown) })
	}
	for _, i := range alone {
		t.Run(cases[i].Name, func(t *testing.T) {
			objects := decode(t, cases[i].In(i).YAML)
			if err := apply(t, s, cases[i].In(i).YAML); err != nil {
				t.Fatalf("the API server refuses it: %v", err)
			}
			a := ask(t)
			remove(t, s, objects)
			a = oracle.Analyses{Istio: without(a.Istio, together.Istio, before.Istio), Ours: without(a.Ours, together.Ours, before.Ours)}
			compare(t, cases[i], a.NotOfOthers(i), shown)
		})
	}
	for _, stale := range shown.Stale(false) {
		t.Error(stale)
	}
}

// program finds a program of the build.
func compare(t *testing.T, c oracle.Case, a oracle.Analyses, shown oracle.Shown) {
	t.Helper()
	unlisted, rows := a.Unlisted(false)
	shown.Add(c, rows)
	if len(unlisted) > 0 {
		t.Errorf("%s\nmend the analysis, or give it a row in AnalysisDifferences", strings.Join(unlisted, "\n"))
	}
}

func without(list []oracle.Found, others ...[]oracle.Found) []oracle.Found {
	known := map[oracle.Found]bool{}
	for _, o := range others {
		for _, f := range o {
			known[f] = true
		}
	}
	var out []oracle.Found
	for _, f := range list {
		if !known[f] {
			out = append(out, f)
		}
	}
	return out
}

func decode(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	objects, err := kubeapi.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return objects
}
