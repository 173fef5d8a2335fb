package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"k8s.io/apimachinery/pkg/api/validate/content"

	"fairlead.dev/pkg/auth"
)

// Workload is a namespace and a service account, the two things that an Istio identity is made of.
type Workload struct {
	Namespace, ServiceAccount string
}

// String is the form of flags and logs: namespace/service-account.
func (w Workload) String() string { return w.Namespace + "/" + w.ServiceAccount }

// ID is the workload's SPIFFE ID in a trust domain.
func (w Workload) ID(td spiffeid.TrustDomain) (spiffeid.ID, error) {
	return spiffeid.FromSegments(td, "ns", w.Namespace, "sa", w.ServiceAccount)
}

// WorkloadOf reads the path /ns/<namespace>/sa/<service account> of a SPIFFE ID.
func WorkloadOf(id spiffeid.ID) (Workload, error) {
	namespace, account, ok := auth.WorkloadOf(id)
	if !ok {
		return Workload{}, fmt.Errorf("%s is not of the form spiffe://<trust domain>/ns/<namespace>/sa/<service account>", id)
	}
	w := Workload{Namespace: namespace, ServiceAccount: account}
	if err := w.check(); err != nil {
		return Workload{}, fmt.Errorf("%s: %w", id, err)
	}
	return w, nil
}

// ParseWorkload reads namespace/service-account.
func ParseWorkload(text string) (Workload, error) {
	namespace, account, ok := strings.Cut(text, "/")
	if !ok {
		return Workload{}, fmt.Errorf("%q is not namespace/service-account", text)
	}
	w := Workload{Namespace: namespace, ServiceAccount: account}
	if err := w.check(); err != nil {
		return Workload{}, fmt.Errorf("%q is not namespace/service-account: %w", text, err)
	}
	return w, nil
}

// check applies Kubernetes' rules for the two names, so that an identity cannot hold what no namespace or account is called.
func (w Workload) check() error {
	if problems := content.IsDNS1123Label(w.Namespace); len(problems) > 0 {
		return fmt.Errorf("namespace %q: %s", w.Namespace, strings.Join(problems, "; "))
	}
	if problems := content.IsDNS1123Subdomain(w.ServiceAccount); len(problems) > 0 {
		return fmt.Errorf("service account %q: %s", w.ServiceAccount, strings.Join(problems, "; "))
	}
	return nil
}

// DNSNames says which DNS names a certificate carries besides the workload's SPIFFE ID, so that clients which verify names (Istio's own agent) accept it.
type DNSNames map[Workload][]string

// ParseDNSNames reads rules of the form namespace/service-account=name,name.
func ParseDNSNames(rules []string) (DNSNames, error) {
	parsed := DNSNames{}
	var errs []error
	for _, rule := range rules {
		who, list, ok := strings.Cut(rule, "=")
		if !ok || list == "" {
			errs = append(errs, fmt.Errorf("%q is not namespace/service-account=name,name", rule))
			continue
		}
		w, err := ParseWorkload(who)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, name := range strings.Split(list, ",") {
			if problems := content.IsDNS1123Subdomain(name); len(problems) > 0 {
				errs = append(errs, fmt.Errorf("%q: %q is not a DNS name: %s", rule, name, strings.Join(problems, "; ")))
				continue
			}
			if !slices.Contains(parsed[w], name) {
				parsed[w] = append(parsed[w], name)
			}
		}
	}
	return parsed, errors.Join(errs...)
}

// Impersonators says which callers may ask for another workload's certificate, as a node's proxy does for the Pods it serves.
type Impersonators map[Workload][]target

// target is one service account, or with account "*" every one of the namespace.
type target struct{ namespace, account string }

// ParseImpersonators reads rules of the form namespace/service-account=namespace/service-account,namespace/*.
func ParseImpersonators(rules []string) (Impersonators, error) {
	parsed := Impersonators{}
	var errs []error
	for _, rule := range rules {
		who, list, ok := strings.Cut(rule, "=")
		if !ok || list == "" {
			errs = append(errs, fmt.Errorf("%q is not namespace/service-account=namespace/service-account,namespace/*", rule))
			continue
		}
		w, err := ParseWorkload(who)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, text := range strings.Split(list, ",") {
			namespace, all := strings.CutSuffix(text, "/*")
			if all {
				text = namespace + "/any"
			}
			t, err := ParseWorkload(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("%q: %w", rule, err))
				continue
			}
			if all {
				t.ServiceAccount = "*"
			}
			parsed[w] = append(parsed[w], target{namespace: t.Namespace, account: t.ServiceAccount})
		}
	}
	return parsed, errors.Join(errs...)
}

func (i Impersonators) allowed(caller, wanted Workload) bool {
	for _, t := range i[caller] {
		if t.namespace == wanted.Namespace && (t.account == "*" || t.account == wanted.ServiceAccount) {
			return true
		}
	}
	return false
}
