package policy

import (
	"slices"
	"strings"
)

// Impersonators says which callers may ask for another workload's certificate. Istio's ztunnel does so for the Pods of
// its node.
type Impersonators map[Workload][]Workload

// anyAccount is the service account of a Workload in Impersonators that stands for every one of the namespace.
const anyAccount = "*"

// ParseImpersonators reads rules of the form namespace/service-account=namespace/service-account,namespace/*.
func ParseImpersonators(rules []string) (Impersonators, error) {
	return parseRules(rules, "namespace/service-account=namespace/service-account,namespace/*", func(text string) (Workload, error) {
		namespace, all := strings.CutSuffix(text, "/"+anyAccount)
		if !all {
			return ParseWorkload(text)
		}
		w, err := ParseWorkload(namespace + "/any")
		w.ServiceAccount = anyAccount
		return w, err
	})
}

func (i Impersonators) allowed(caller, wanted Workload) bool {
	return slices.ContainsFunc(i[caller], func(w Workload) bool { return w == wanted || w == (Workload{wanted.Namespace, anyAccount}) })
}
