package service

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Options are the flags that every service has.
type Options struct {
	OpsAddress                 string
	LogLevel, OTLPEndpoint     string
	ShutdownGrace              time.Duration
	TrustDomain                string
	AdminJWKSFile, AdminIssuer string
}

// Help has the texts of flags that a service describes in its own words, by flag.
type Help map[string]string

// AddFlags registers the flags. A ShutdownGrace that is set already is the default.
func (o *Options) AddFlags(flags *pflag.FlagSet, help Help) {
	flags.StringVar(&o.OpsAddress, "ops-address", ":15014", "address of the HTTP port for metrics, probes and debugging")
	flags.StringVar(&o.LogLevel, "log-level", "info", "debug, info, warn or error")
	flags.StringVar(&o.OTLPEndpoint, "otlp-endpoint", "", "where traces go (OTLP over gRPC); empty: nowhere")
	flags.DurationVar(&o.ShutdownGrace, "shutdown-grace", cmp.Or(o.ShutdownGrace, 10*time.Second),
		"how long running calls may take after SIGTERM")
	flags.StringVar(&o.TrustDomain, "trust-domain", "cluster.local", "trust domain of all identities")
	flags.StringVar(&o.AdminJWKSFile, "admin-jwks-file", "", "keys that verify administrators' tokens for /debug; empty: /debug is closed")
	flags.StringVar(&o.AdminIssuer, "admin-issuer", "", "issuer that administrators' tokens must name (default: the value of --issuer)")
	for flag, text := range help {
		flags.Lookup(flag).Usage = text
	}
}

// Common returns the options that a service's own embed; see Command.
func (o *Options) Common() *Options { return o }

// Check adds what is wrong with the options to errs, and returns the trust domain.
func (o *Options) Check(errs *FlagErrors) spiffeid.TrustDomain {
	errs.Required("ops-address", o.OpsAddress)
	errs.AtLeast("shutdown-grace", o.ShutdownGrace, 0)
	if o.AdminJWKSFile != "" && o.AdminIssuer == "" {
		errs.Add("admin-issuer", errors.New("is required with --admin-jwks-file"))
	}
	domain, err := spiffeid.TrustDomainFromString(o.TrustDomain)
	errs.Add("trust-domain", err)
	return domain
}

// FlagErrors collects what is wrong with the values of flags, so that all of it is reported at once.
type FlagErrors []error

// Add adds an error of a flag; nil adds nothing.
func (f *FlagErrors) Add(flag string, err error) {
	if err != nil {
		*f = append(*f, fmt.Errorf("--%s: %w", flag, err))
	}
}

// Required adds an error if the value is empty.
func (f *FlagErrors) Required(flag, value string) {
	if value == "" {
		f.Add(flag, errors.New("is required"))
	}
}

// AtLeast adds an error if the value is less than least.
func (f *FlagErrors) AtLeast(flag string, value, least time.Duration) {
	if value < least {
		f.Add(flag, fmt.Errorf("%s is less than %s", value, least))
	}
}

// Err joins the errors; nil if there are none.
func (f FlagErrors) Err() error { return errors.Join(f...) }
