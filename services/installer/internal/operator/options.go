package operator

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/service"
	"fairlead.dev/services/installer/internal/kube"
)

// DefaultNamespace is where an operator runs, as istioctl installed it.
const DefaultNamespace = "istio-operator"

// minLease is the shortest lease: a third of it is the time for one request.
const minLease = 3 * time.Second

// maxWorkers bounds how many resources are reconciled at a time.
const maxWorkers = 64

// Options are the flags of `fairlead operator`.
type Options struct {
	service.Options
	kube.Config

	// Watched are the namespaces of the resources; none means all.
	Watched []string
	// Namespace has the lease.
	Namespace string
	// Revision, if it is not empty, is the only one whose resources are reconciled.
	Revision                           string
	Manifests                          string
	WaitTimeout, Resync, LeaseDuration time.Duration
	Workers                            int
	// AllowPrivileges lets IstioOperators set what guard refuses.
	AllowPrivileges bool
}

// AddFlags registers the flags. Defaults come from the environment that the chart sets.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Options.AddFlags(flags, service.Help{"shutdown-grace": "has no effect: what is being applied is completed by the next operator"})
	flags.StringVarP(&o.Kubeconfig, "kubeconfig", "c", "", "kubeconfig file, as of kubectl; in a Pod its service account is enough")
	flags.StringVar(&o.Context, "context", "", "context of the kubeconfig file")
	flags.DurationVar(&o.Timeout, "kubeclient-timeout", 30*time.Second, "how long one request to the API server may take")
	flags.StringSliceVar(&o.Watched, "watch-namespaces", list(os.Getenv("WATCH_NAMESPACE")),
		"namespaces whose IstioOperators are reconciled; empty: all. WATCH_NAMESPACE sets the default")
	flags.StringVar(&o.Namespace, "operator-namespace", fromEnv("POD_NAMESPACE", DefaultNamespace),
		"namespace of the lease; POD_NAMESPACE sets the default")
	flags.StringVarP(&o.Revision, "revision", "r", os.Getenv("REVISION"),
		"reconcile the IstioOperators of this revision alone; empty: all that no operator of their own reconciles. REVISION sets the default")
	flags.StringVarP(&o.Manifests, "manifests", "d", "", "install package, instead of Fairlead's own: a directory with charts and profiles")
	flags.DurationVar(&o.WaitTimeout, "wait-timeout", 5*time.Minute,
		"how long a change of an IstioOperator waits for its components, all together, until it is tried again")
	flags.DurationVar(&o.Resync, "resync", 10*time.Minute, "how often everything is compared with the cluster, beside what watches tell")
	flags.DurationVar(&o.LeaseDuration, "lease-duration", 15*time.Second, "after which time without a sign of life another replica takes over")
	flags.BoolVar(&o.AllowPrivileges, "allow-privileges", false,
		"let IstioOperators have overlays that change names, namespaces, accounts, rights and webhooks, and Pods with privileges of the node: "+
			"who may write them has every right in the cluster then")
	flags.IntVar(&o.Workers, "workers", 4, "how many IstioOperators are reconciled at a time")
}

func fromEnv(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

// list divides a list with commas.
func list(text string) (out []string) {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// check judges the options.
func (o *Options) check() (spiffeid.TrustDomain, error) {
	var errs service.FlagErrors
	domain := o.Check(&errs)
	errs.Required("operator-namespace", o.Namespace)
	errs.AtLeast("wait-timeout", o.WaitTimeout, time.Second)
	errs.AtLeast("resync", o.Resync, time.Second)
	errs.AtLeast("lease-duration", o.LeaseDuration, minLease)
	errs.AtLeast("kubeclient-timeout", o.Timeout, time.Second)
	if o.Workers < 1 || o.Workers > maxWorkers {
		errs.Add("workers", fmt.Errorf("%d is not between 1 and %d", o.Workers, maxWorkers))
	}
	if slices.Contains(o.Watched, "") {
		errs.Add("watch-namespaces", errors.New("it has an empty name; leave the flag out for all namespaces"))
	}
	return domain, errs.Err()
}

// namespaces are the watched ones, each once; one empty name means all.
func (o *Options) namespaces() []string {
	if len(o.Watched) == 0 {
		return []string{""}
	}
	names := slices.Clone(o.Watched)
	slices.Sort(names)
	return slices.Compact(names)
}
