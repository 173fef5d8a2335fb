package config

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// STS configures the token exchange (package sts).
type STS struct {
	// Port on loopback; 0 is no token exchange.
	Port uint16
	// Provider and ProjectNumber are those of the plugin GoogleTokenExchange.
	Provider, ProjectNumber string
}

// CredentialFetcher is where the agent's token for the control plane comes from.
type CredentialFetcher string

// The fetchers, under the names of Istio's agent.
const (
	// TokenFile reads --token-file, in which Kubernetes puts it.
	TokenFile CredentialFetcher = "JWT"
	// GoogleComputeEngine asks the machine's metadata server.
	GoogleComputeEngine CredentialFetcher = "GoogleComputeEngine"
)

// googleTokenExchange is the only plugin for the token exchange, under its name in Istio.
const googleTokenExchange = "GoogleTokenExchange"

// parseSTS sets c.STS and c.CredentialFetcher.
func (c *Config) parseSTS(f Flags, env *environment) error {
	var errs []error
	c.CredentialFetcher = CredentialFetcher(env.or("CREDENTIAL_FETCHER_TYPE", string(TokenFile)))
	if c.CredentialFetcher != TokenFile && c.CredentialFetcher != GoogleComputeEngine {
		errs = append(errs, fmt.Errorf("CREDENTIAL_FETCHER_TYPE=%q: want %s or %s", c.CredentialFetcher, TokenFile, GoogleComputeEngine))
	}
	port := f.STSPort
	if port == 0 && env.own("STS_PORT") != "" && env.own("STS_PORT") != "0" {
		port = int(env.port("STS_PORT", 0))
	}
	if port < 0 || port > 1<<16-1 {
		return errors.Join(append(errs, fmt.Errorf("--sts-port %d: want a port, 1 to 65535, or 0 for none", port))...)
	}
	c.STS.Port = uint16(port)
	if port == 0 {
		return errors.Join(errs...)
	}
	if plugin := cmp.Or(f.TokenManagerPlugin, env.or("TOKEN_MANAGER_PLUGIN", googleTokenExchange)); plugin != googleTokenExchange {
		errs = append(errs, fmt.Errorf("--token-manager-plugin %q: want %s", plugin, googleTokenExchange))
	}
	// "project id|project number|cluster name|location", as Istio's injection sets it.
	meta := strings.Split(env.get("GCP_METADATA"), "|")
	if len(meta) == 4 {
		c.STS.ProjectNumber = meta[1]
		c.STS.Provider = fmt.Sprintf("https://container.googleapis.com/v1/projects/%s/locations/%s/clusters/%s", meta[0], meta[3], meta[2])
	}
	if !digits(c.STS.ProjectNumber) {
		errs = append(errs, fmt.Errorf(
			"GCP_METADATA=%q: the token exchange wants PROJECT_ID|PROJECT_NUMBER|CLUSTER_NAME|LOCATION; set it, or --sts-port 0",
			env.get("GCP_METADATA")))
	}
	c.STS.Provider = cmp.Or(env.get("GKE_CLUSTER_URL"), identityProvider(env), c.STS.Provider)
	return errors.Join(errs...)
}

// identityProvider is that of the workload's identity pool, if it is not the cluster.
func identityProvider(env *environment) string {
	if p := env.get("CREDENTIAL_IDENTITY_PROVIDER"); p != string(GoogleComputeEngine) {
		return p
	}
	return ""
}

func digits(v string) bool {
	return v != "" && len(v) <= 20 && strings.Trim(v, "0123456789") == ""
}
