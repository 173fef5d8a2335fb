package gateways

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"fairlead.dev/pkg/service"
	"fairlead.dev/proto/fairlead/contract"
)

const (
	// minLease is the shortest lease: a third of it is the time for one request.
	minLease = 3 * time.Second
	// maxWorkers bounds how many Gateways are compared with their objects at a time.
	maxWorkers = 64
)

// Options are the flags of fairlead-gateways.
type Options struct {
	service.Options

	Kubeconfig string
	// Namespace has the lease.
	Namespace string
	// RootNamespace has the ConfigMaps with the defaults of a class.
	RootNamespace string
	// Revision of the control plane; "" is that without a name.
	Revision string
	// ValuesFile has the installation's values for the chart gateway.
	ValuesFile    string
	LeaseDuration time.Duration
	Workers       int
	QPS           float32
}

// AddFlags registers the flags and sets their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Options.AddFlags(flags, service.Help{"shutdown-grace": "has no effect: what is not written yet is written by the next leader"})
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "",
		"file that names the API server and the credentials for it (default: the service account of the Pod that this process runs in)")
	flags.StringVar(&o.Namespace, "namespace", contract.SystemNamespace, "namespace of the lease")
	flags.StringVar(&o.RootNamespace, "root-namespace", contract.SystemNamespace,
		"namespace of the ConfigMaps with label gateway.istio.io/defaults-for-class")
	flags.StringVar(&o.Revision, "revision", "", "revision of the control plane (default: that without a name)")
	flags.StringVar(&o.ValuesFile, "values-file", "",
		"file with the installation's values for the chart gateway: global, meshConfig; YAML, followed (required)")
	flags.DurationVar(
		&o.LeaseDuration,
		"lease-duration",
		15*time.Second,
		"after which time without a sign of life another replica takes over",
	)
	flags.IntVar(&o.Workers, "workers", 4, "how many Gateways are compared with their objects at a time")
	flags.Float32Var(
		&o.QPS,
		"qps",
		50,
		"how many requests a second are sent to the API server at most, beside watches; bursts have twice that",
	)
}

// check judges the options.
func (o *Options) check() (spiffeid.TrustDomain, error) {
	var errs service.FlagErrors
	domain := o.Check(&errs)
	errs.Required("namespace", o.Namespace)
	errs.Required("root-namespace", o.RootNamespace)
	errs.Required("values-file", o.ValuesFile)
	errs.AtLeast("lease-duration", o.LeaseDuration, minLease)
	if o.Workers < 1 || o.Workers > maxWorkers {
		errs.Add("workers", fmt.Errorf("%d is not between 1 and %d", o.Workers, maxWorkers))
	}
	if o.QPS <= 0 {
		errs.Add("qps", errors.New("it is not more than 0"))
	}
	if o.Revision == contract.DefaultRevision {
		errs.Add("revision", errors.New("the revision without a name is meant by leaving the flag out"))
	}
	return domain, errs.Err()
}

func (o *Options) revisionName() string {
	if o.Revision == "" {
		return contract.DefaultRevision
	}
	return o.Revision
}

// leaseName is the name of the lease of the replicas of a revision.
func (o *Options) leaseName() string {
	if o.Revision == "" {
		return manager
	}
	return manager + "-" + o.Revision
}
