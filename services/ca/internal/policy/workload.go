package policy

import (
	"fmt"
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

// check applies Kubernetes' rules for names of namespaces and service accounts.
func (w Workload) check() error {
	if problems := content.IsDNS1123Label(w.Namespace); len(problems) > 0 {
		return fmt.Errorf("namespace %q: %s", w.Namespace, strings.Join(problems, "; "))
	}
	if problems := content.IsDNS1123Subdomain(w.ServiceAccount); len(problems) > 0 {
		return fmt.Errorf("service account %q: %s", w.ServiceAccount, strings.Join(problems, "; "))
	}
	return nil
}
