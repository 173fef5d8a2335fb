package policy

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
)

// DNSNames are the DNS names that a workload's certificate carries besides its SPIFFE ID, so that clients which verify
// names accept it; Istio's agent is one.
type DNSNames map[Workload][]string

// ParseDNSNames reads rules of the form namespace/service-account=name,name. It keeps the order of the names.
func ParseDNSNames(rules []string) (DNSNames, error) {
	parsed, err := parseRules(rules, "namespace/service-account=name,name", func(name string) (string, error) {
		if problems := content.IsDNS1123Subdomain(name); len(problems) > 0 {
			return "", fmt.Errorf("%q is not a DNS name: %s", name, strings.Join(problems, "; "))
		}
		return name, nil
	})
	for w, names := range parsed {
		var unique []string
		for _, name := range names {
			if !slices.Contains(unique, name) {
				unique = append(unique, name)
			}
		}
		parsed[w] = unique
	}
	return parsed, err
}
