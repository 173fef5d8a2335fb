package inject

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"istio.io/api/annotation"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// checks are the annotations that end up in arguments and rules of the proxy, and what each may be.
var checks = map[string]func(string) error{
	annotation.SidecarInterceptionMode.Name:                   checkMode,
	annotation.SidecarStatusPort.Name:                         func(v string) error { _, err := parsePort(v); return err },
	annotation.SidecarStatusReadinessInitialDelaySeconds.Name: checkCount,
	annotation.SidecarStatusReadinessPeriodSeconds.Name:       checkCount,
	annotation.SidecarStatusReadinessFailureThreshold.Name:    checkCount,
	annotation.SidecarTrafficIncludeOutboundIPRanges.Name:     orAll(checkRanges),
	annotation.SidecarTrafficExcludeOutboundIPRanges.Name:     checkRanges,
	annotation.SidecarTrafficIncludeInboundPorts.Name:         orAll(checkPorts),
	annotation.SidecarTrafficExcludeInboundPorts.Name:         checkPorts,
	annotation.SidecarTrafficIncludeOutboundPorts.Name:        checkPorts,
	annotation.SidecarTrafficExcludeOutboundPorts.Name:        checkPorts,
	annotation.SidecarTrafficExcludeInterfaces.Name:           checkInterfaces,
	annotation.SidecarTrafficKubevirtInterfaces.Name:          checkInterfaces,
	annotation.IoIstioRerouteVirtualInterfaces.Name:           checkInterfaces,
	annotation.PrometheusMergeMetrics.Name:                    checkBool,
	annotation.ProxyConfig.Name:                               checkProxyConfig,
	annotation.SidecarProxyCPU.Name:                           checkQuantity,
	annotation.SidecarProxyMemory.Name:                        checkQuantity,
	annotation.SidecarProxyCPULimit.Name:                      checkQuantity,
	annotation.SidecarProxyMemoryLimit.Name:                   checkQuantity,
	annotation.SidecarLogLevel.Name:                           checkLevel(envoyLevels),
	annotation.SidecarComponentLogLevel.Name:                  checkScopes(envoyLevels, true),
	annotation.SidecarAgentLogLevel.Name:                      checkScopes(agentLevels, false),
	annotation.SidecarBootstrapOverride.Name:                  checkObjectName,
	annotation.SidecarProxyImage.Name:                         checkImage,
	annotation.SidecarProxyImageType.Name:                     checkImage,
}

// Levels of Envoy's log (--log-level), and of the agent's.
var (
	envoyLevels = []string{"trace", "debug", "info", "warning", "warn", "error", "critical", "off"}
	agentLevels = []string{"debug", "info", "warn", "error", "fatal", "none"}
)

// checkAnnotations returns an error for every annotation that has a value of no use.
func checkAnnotations(annotations map[string]string) error {
	var errs []error
	for _, name := range sortedKeys(annotations) {
		if check := checks[name]; check != nil {
			if err := check(annotations[name]); err != nil {
				errs = append(errs, badAnnotation(name, annotations[name], err))
			}
		}
	}
	return errors.Join(errs...)
}

// maxShown bounds how much of an annotation an error repeats.
const maxShown = 120

// badAnnotation names an annotation and its value; err says what is wrong and what to write.
func badAnnotation(name, value string, err error) error {
	if len(value) > maxShown {
		value = value[:maxShown] + "…"
	}
	return fmt.Errorf("annotation %s: %q: %w", name, value, err)
}

func orAll(check func(string) error) func(string) error {
	return func(value string) error {
		if value == "*" {
			return nil
		}
		return check(value)
	}
}

func checkMode(value string) error {
	switch value {
	case "REDIRECT", "TPROXY", "NONE":
		return nil
	}
	return errors.New("no such mode; say REDIRECT, TPROXY or NONE")
}

func checkCount(value string) error {
	if _, err := strconv.ParseUint(value, 10, 32); err != nil {
		return errors.New("not a number of 0 and more; write one in digits")
	}
	return nil
}

func checkBool(value string) error {
	if _, err := strconv.ParseBool(value); err != nil {
		return errors.New("neither true nor false; say one of them")
	}
	return nil
}

func checkRanges(value string) error {
	if value == "" {
		return nil
	}
	for text := range strings.SplitSeq(value, ",") {
		if _, err := netip.ParsePrefix(text); err != nil {
			return fmt.Errorf("%q is no range of addresses; write ADDRESS/BITS, separated by commas without spaces", text)
		}
	}
	return nil
}

func parsePort(text string) (int, error) {
	port, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q is no port; write a number from 0 to 65535", text)
	}
	return int(port), nil
}

func checkPorts(value string) error {
	if strings.TrimSpace(value) == "" {
		return nil
	}
	for text := range strings.SplitSeq(strings.TrimSpace(value), ",") {
		if _, err := parsePort(text); err != nil {
			return err
		}
	}
	return nil
}

// interfaceName is a name that both Linux and Istio take.
var interfaceName = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9_.-]{0,14}$`)

func checkInterfaces(value string) error {
	if value == "" {
		return nil
	}
	for text := range strings.SplitSeq(value, ",") {
		if text = strings.TrimSpace(text); !interfaceName.MatchString(text) {
			return fmt.Errorf("%q is no name of a network interface; write names of at most 15 letters, digits and _.-, separated by commas", text)
		}
	}
	return nil
}

func checkLevel(levels []string) func(string) error {
	return func(value string) error {
		if !slices.Contains(levels, value) {
			return fmt.Errorf("no such level; say one of %s", strings.Join(levels, ", "))
		}
		return nil
	}
}

// scopeName is a component of Envoy's log, or a scope of the agent's.
var scopeName = regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`)

// checkScopes checks a list such as "http:trace,router:debug". Unless each needs its scope, a level alone is for all.
func checkScopes(levels []string, scoped bool) func(string) error {
	return func(value string) error {
		if value == "" {
			return nil
		}
		for text := range strings.SplitSeq(value, ",") {
			scope, level, ok := strings.Cut(text, ":")
			if !ok && !scoped {
				scope, level = "default", text
			}
			if !scopeName.MatchString(scope) || !slices.Contains(levels, level) {
				return fmt.Errorf("%q is no NAME:LEVEL; write such with commas between them, where LEVEL is one of %s", text,
					strings.Join(levels, ", "))
			}
		}
		return nil
	}
}

func checkObjectName(value string) error {
	if problems := validation.IsDNS1123Subdomain(value); len(problems) > 0 {
		return fmt.Errorf("no name of an object: %s; write that of a ConfigMap in the Pod's namespace", problems[0])
	}
	return nil
}

// imagePart has the characters of an image's name, tag and digest.
var imagePart = regexp.MustCompile(`^[a-zA-Z0-9_.:/@-]*$`)

func checkImage(value string) error {
	if !imagePart.MatchString(value) {
		return errors.New("an image has letters, digits and ._-:/@ alone; remove what else there is")
	}
	return nil
}

func checkQuantity(value string) error {
	if strings.ContainsFunc(value, unicode.IsControl) {
		return errors.New("it has control characters; remove them")
	}
	if _, err := resource.ParseQuantity(value); err != nil {
		return errors.New("no quantity of Kubernetes; write such as 100m or 128Mi")
	}
	return nil
}
