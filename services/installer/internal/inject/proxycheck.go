package inject

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"
	"k8s.io/apimachinery/pkg/util/validation"

	"fairlead.dev/pkg/meshdefaults"
)

// checkProxyConfig checks the annotation proxy.istio.io/config: each field by itself, over the defaults.
func checkProxyConfig(text string) error {
	tree, err := parseObject([]byte(text))
	if err != nil {
		return fmt.Errorf("%w; write a ProxyConfig in YAML", err)
	}
	proxy := meshdefaults.ProxyConfig()
	if err := overlayProxy(proxy, tree); err != nil {
		return fmt.Errorf("%w; write a ProxyConfig in YAML", err)
	}
	return checkProxy(proxy)
}

// checkProxy checks the fields of a ProxyConfig with which an agent would not start.
func checkProxy(p *meshconfig.ProxyConfig) error {
	var errs []error
	fail := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s: "+format, append([]any{field}, args...)...))
	}
	address := func(field, value string) {
		if err := checkAddress(value); err != nil {
			fail(field, "%w", err)
		}
	}
	if p.GetConfigPath() == "" {
		fail("configPath", "it is empty; name a directory, or leave the field out")
	}
	if p.GetBinaryPath() == "" {
		fail("binaryPath", "it is empty; name Envoy's file, or leave the field out")
	}
	if c, ok := p.GetClusterName().(*meshconfig.ProxyConfig_ServiceCluster); p.GetClusterName() == nil || ok && c.ServiceCluster == "" {
		fail("serviceCluster", "it is empty; name one, or leave the field out")
	}
	if d := p.GetDrainDuration().AsDuration(); d < time.Second || d%time.Second != 0 {
		fail("drainDuration", "%s is not in whole seconds, at least one; write such as 45s", d)
	}
	address("discoveryAddress", p.GetDiscoveryAddress())
	checkTracing(p.GetTracing(), fail, address)
	for field, value := range map[string]string{
		"statsdUdpAddress": p.GetStatsdUdpAddress(), "envoyMetricsService.address": p.GetEnvoyMetricsService().GetAddress(),
		"envoyAccessLogService.address": p.GetEnvoyAccessLogService().GetAddress(),
		"envoyMetricsServiceAddress":    p.GetEnvoyMetricsServiceAddress(), //nolint:staticcheck // deprecated, and Istio's verdict
	} {
		if value != "" {
			address(field, value)
		}
	}
	for field, port := range map[string]int32{"proxyAdminPort": p.GetProxyAdminPort(), "statusPort": p.GetStatusPort()} {
		if port < 1 || port > 65535 {
			fail(field, "%d is no port; write a number from 1 to 65535", port)
		}
	}
	if a := p.GetControlPlaneAuthPolicy(); a != meshconfig.AuthenticationPolicy_NONE && a != meshconfig.AuthenticationPolicy_MUTUAL_TLS {
		fail("controlPlaneAuthPolicy", "%v is no policy; say NONE or MUTUAL_TLS", a)
	}
	checkKeyProvider(p.GetPrivateKeyProvider(), fail)
	checkConnections(p.GetConnectionSettings(), fail)
	return errors.Join(errs...)
}

func checkTracing(t *meshconfig.Tracing, fail func(string, string, ...any), address func(string, string)) {
	host := func(a string) string { return strings.Replace(a, "$(HOST_IP)", "127.0.0.1", 1) }
	if z := t.GetZipkin(); z != nil {
		address("tracing.zipkin.address", host(z.GetAddress()))
	}
	if d := t.GetDatadog(); d != nil {
		address("tracing.datadog.address", host(d.GetAddress()))
	}
	if l := t.GetLightstep(); l != nil { //nolint:staticcheck // deprecated, and Istio's verdict
		address("tracing.lightstep.address", l.GetAddress())
		if l.GetAccessToken() == "" {
			fail("tracing.lightstep.accessToken", "it is empty; set the token")
		}
	}
	for name, tag := range t.GetCustomTags() {
		if tag == nil {
			fail("tracing.customTags."+name, "it is null; give it a type")
		}
	}
}

func checkKeyProvider(k *meshconfig.PrivateKeyProvider, fail func(string, string, ...any)) {
	if k == nil {
		return
	}
	delay := k.GetCryptomb().GetPollDelay()
	if k.GetQat() != nil {
		delay = k.GetQat().GetPollDelay()
	}
	switch {
	case k.GetProvider() == nil:
		fail("privateKeyProvider", "it names no provider; say cryptomb or qat")
	case delay.AsDuration() == 0:
		fail("privateKeyProvider", "its pollDelay is missing or zero; write such as 10ms")
	}
}

func checkConnections(s *meshconfig.ProxyConfig_ConnectionSettings, fail func(string, string, ...any)) {
	for field, d := range map[string]interface{ AsDuration() time.Duration }{
		"httpIdleTimeout": s.GetHttpIdleTimeout(), "httpMaxConnectionDuration": s.GetHttpMaxConnectionDuration(),
		"httpDrainTimeout": s.GetHttpDrainTimeout(), "httpRequestTimeout": s.GetHttpRequestTimeout(),
		"httpRequestHeadersTimeout": s.GetHttpRequestHeadersTimeout(), "httpStreamIdleTimeout": s.GetHttpStreamIdleTimeout(),
		"httpMaxStreamDuration": s.GetHttpMaxStreamDuration(),
	} {
		if d.AsDuration() < 0 {
			fail("connectionSettings."+field, "it is negative; write such as 10s")
		}
	}
}

// checkAddress checks HOST:PORT with a DNS name or an address.
func checkAddress(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return fmt.Errorf("%q is no address; write HOST:PORT", text)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q names no port between 1 and 65535; write HOST:PORT", text)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return nil
	}
	if len(host) > 255 || host == "" {
		return fmt.Errorf("%q names no host; write HOST:PORT", text)
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(host, "."), ".") {
		if len(validation.IsDNS1123Label(strings.ToLower(label))) > 0 {
			return fmt.Errorf("%q names no host: %q is no part of a DNS name; write HOST:PORT", text, label)
		}
	}
	return nil
}
