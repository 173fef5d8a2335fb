package clusterkeys

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"fairlead.dev/pkg/yamltext"
)

// NomadKey has, of a cluster of Nomad, the rules that give its tasks service accounts: a list of NomadRule in YAML.
// A cluster with it is none of Kubernetes: its tokens are Nomad's workload identities.
const NomadKey = "nomad.yaml"

// Bounds of rules.
const (
	MaxNomadRules = 1000
	maxNomadName  = 256
)

// AnyName in a NomadRule stands for every name. Nothing else in a name is a pattern.
const AnyName = "*"

// NomadRule gives tasks of Nomad the identity of a service account.
type NomadRule struct {
	// Namespace, Job and Task are Nomad's names, of claims nomad_namespace, nomad_job_id and nomad_task; AnyName for
	// all.
	Namespace string `json:"namespace" yaml:"namespace"`
	Job       string `json:"job" yaml:"job"`
	Task      string `json:"task" yaml:"task"`
	// Account is namespace/service-account, of Kubernetes.
	Account string `json:"account" yaml:"account"`
}

// check names the field that is wrong.
func (r *NomadRule) check() error {
	var errs []error
	for _, f := range []struct{ name, value string }{{"namespace", r.Namespace}, {"job", r.Job}, {"task", r.Task}} {
		switch {
		case f.value == "":
			errs = append(errs, fmt.Errorf("%s is empty; name one, or write %q for all", f.name, AnyName))
		case len(f.value) > maxNomadName:
			errs = append(errs, fmt.Errorf("%s is longer than %d bytes", f.name, maxNomadName))
		case f.value != AnyName && strings.Contains(f.value, AnyName):
			errs = append(errs, fmt.Errorf("%s: %.80q is a pattern; write whole names, or %q for all", f.name, f.value, AnyName))
		}
	}
	namespace, account, _ := strings.Cut(r.Account, "/")
	if !namespaceForm.MatchString(namespace) || !accountForm.MatchString(account) || len(account) > maxAccount {
		errs = append(errs, fmt.Errorf("account: %.80q is not namespace/service-account, such as shop/web", r.Account))
	}
	return errors.Join(errs...)
}

// matches reports whether the rule is about a task.
func (r *NomadRule) matches(namespace, job, task string) bool {
	is := func(rule, name string) bool { return rule == AnyName || rule == name }
	return is(r.Namespace, namespace) && is(r.Job, job) && is(r.Task, task)
}

// OfNomad reports whether the cluster is one of Nomad.
func (c *Cluster) OfNomad() bool { return c.Nomad != nil }

// Account returns the service account that the first rule that matches gives a task of Nomad; ok is false if none does.
func (c *Cluster) Account(namespace, job, task string) (accountNamespace, account string, ok bool) {
	for i := range c.Nomad {
		if r := &c.Nomad[i]; r.matches(namespace, job, task) {
			return strings.Cut(r.Account, "/")
		}
	}
	return "", "", false
}

// Grants reports whether a rule of a cluster of Nomad gives any task this account. A cluster of Kubernetes has accounts
// of its own, of which nobody here knows: there it is true.
func (c *Cluster) Grants(namespace, account string) bool {
	return !c.OfNomad() || slices.ContainsFunc(c.Nomad, func(r NomadRule) bool { return r.Account == namespace+"/"+account })
}

// checkNomad returns what is wrong with the rules.
func (c *Cluster) checkNomad() []error {
	switch {
	case !c.OfNomad():
		return nil
	case len(c.Nomad) == 0:
		return []error{errors.New("has no rule, so that no task gets an identity; write one, or remove the field if this is a cluster of " +
			"Kubernetes")}
	case len(c.Nomad) > MaxNomadRules:
		return []error{fmt.Errorf("has more than %d rules", MaxNomadRules)}
	}
	var errs []error
	for i := range c.Nomad {
		if err := c.Nomad[i].check(); err != nil {
			errs = append(errs, fmt.Errorf("rule %d: %w", i+1, err))
		}
	}
	return errs
}

// ParseNomad reads rules. The list that it returns is never nil.
func ParseNomad(text string) (rules []NomadRule, err error) {
	defer func() {
		if r := recover(); r != nil { // of the parser, on malformed text
			rules, err = []NomadRule{}, fmt.Errorf("cannot be parsed: %v", r)
		}
	}()
	rules = []NomadRule{}
	if err := yamltext.Check([]byte(text)); err != nil {
		return rules, err
	}
	decoder := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.KnownFields(true) // a misspelt "task" would be a rule for another one
	if err := decoder.Decode(&rules); err != nil && !errors.Is(err, io.EOF) {
		return []NomadRule{}, fmt.Errorf("is no list of rules {namespace: …, job: …, task: …, account: namespace/service-account}: %w", err)
	}
	if rules == nil {
		rules = []NomadRule{}
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return []NomadRule{}, errors.New("has more than one document; write one list")
	}
	return rules, nil
}

// nomadText is the inverse of ParseNomad.
func nomadText(rules []NomadRule) string {
	text, err := yaml.Marshal(rules)
	if err != nil {
		return "" // of strings it is always possible
	}
	return string(text)
}
