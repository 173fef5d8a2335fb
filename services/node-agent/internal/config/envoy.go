package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/yamltext"
)

// maxBootstrapFile bounds a file that replaces or changes Envoy's bootstrap.
const maxBootstrapFile = 1 << 20

// Envoy is what the variables, flags and files of Istio's agent say about Envoy beside its worker threads, logs and
// ports.
type Envoy struct {
	// HostIP is the address of the machine, for $(HOST_IP) in addresses of a ProxyConfig; "" if it is not known.
	HostIP string
	// BootstrapOverride is YAML or JSON that Envoy merges over its bootstrap; nil for none. OverrideFile is where it
	// was.
	BootstrapOverride []byte
	OverrideFile      string
	// BootstrapTemplate is the text of a Go template that takes the place of the agent's bootstrap; nil for none.
	// TemplateFile is where it was.
	BootstrapTemplate []byte
	TemplateFile      string
	// OutlierLog is the file for ejections of endpoints; "" for none.
	OutlierLog string
	// ReadyProxyProtocol accepts the PROXY protocol on the readiness port.
	ReadyProxyProtocol bool
	// SkipDeprecated keeps Envoy from warning of deprecated fields in its configuration.
	SkipDeprecated bool
	// CoreDump lets Envoy leave a core dump when it crashes.
	CoreDump bool
}

// Annotations of a Pod that stand for a field of ProxyConfig.
const (
	statusPortAnnotation = "status.sidecar.istio.io/port"
	discoveryAnnotation  = "sidecar.istio.io/discoveryAddress"
)

// applyAnnotations sets the fields of ProxyConfig that have an annotation of their own.
func (c *Config) applyAnnotations(annotations map[string]string) error {
	if address := annotations[discoveryAnnotation]; address != "" {
		c.ProxyConfig.DiscoveryAddress = address
	}
	if text := annotations[statusPortAnnotation]; text != "" {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return fmt.Errorf("annotation %s: %q: want a port, 0 to 65535", statusPortAnnotation, text)
		}
		c.ProxyConfig.StatusPort = int32(port)
	}
	return nil
}

// parseEnvoy sets c.Envoy, and what environment and flags say about other fields of Envoy.
func (c *Config) parseEnvoy(f Flags, env *environment, h Host) error {
	pc := c.ProxyConfig
	e := Envoy{
		HostIP:             env.get("HOST_IP"),
		OutlierLog:         f.OutlierLog,
		ReadyProxyProtocol: env.boolean("ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", false),
		SkipDeprecated:     env.boolean("ENVOY_SKIP_DEPRECATED_LOGS", false),
		CoreDump:           env.boolean("ISTIO_ENVOY_ENABLE_CORE_DUMP", false),
		OverrideFile:       env.get(bootstrapOverride),
		TemplateFile:       cmp.Or(env.get(bootstrapTemplate), f.BootstrapTemplate),
	}
	var errs []error
	if e.HostIP != "" {
		if _, err := netip.ParseAddr(e.HostIP); err != nil {
			errs = append(errs, fmt.Errorf("HOST_IP=%q: want an IP address", e.HostIP))
		}
	}
	for _, file := range []struct {
		name, path string
		into       *[]byte
	}{{bootstrapOverride, e.OverrideFile, &e.BootstrapOverride},
		{bootstrapTemplate + ", or --templateFile", e.TemplateFile, &e.BootstrapTemplate}} {
		if file.path == "" {
			continue
		}
		data, err := h.ReadFile(file.path)
		if err == nil && len(data) > maxBootstrapFile {
			err = fmt.Errorf("%s is %d bytes: at most %d are read", file.path, len(data), maxBootstrapFile)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", file.name, err))
		}
		*file.into = data
	}
	c.Envoy = e
	if env.boolean("METRICS_LOCALHOST_ACCESS_ONLY", false) {
		loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if c.StatsAddress.Addr().Is6() {
			loopback = netip.IPv6Loopback()
		}
		c.StatsAddress = netip.AddrPortFrom(loopback, c.StatsAddress.Port())
	}
	c.setLogLevels(f.EnvoyLogLevel, f.EnvoyComponents)
	limit := cmp.Or(env.get("ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS"),
		pc.GetRuntimeValues()["overload.global_downstream_max_connections"])
	if limit != "" {
		n, err := strconv.ParseUint(limit, 10, 31)
		if err != nil || n == 0 {
			errs = append(errs, fmt.Errorf(
				"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS, or ProxyConfig runtimeValues overload.global_downstream_max_connections, %q: want a "+
					"number above 0", limit))
		}
		c.MaxDownstreamConnections = n
	}
	return errors.Join(errs...)
}

// Variables that name files which decide all of Envoy's configuration.
const (
	bootstrapOverride = "ISTIO_BOOTSTRAP_OVERRIDE"
	bootstrapTemplate = "ISTIO_BOOTSTRAP"
)

// envoyLevels are those of Envoy's --log-level. With another one Envoy does not start.
var envoyLevels = []string{"trace", "debug", "info", "warning", "warn", "error", "critical", "off"}

// setLogLevels divides "info,misc:error,upstream:debug" into a level and the levels of components, which are those of
// components if it has none. A level that Envoy does not know is left out, with a warning.
func (c *Config) setLogLevels(text, components string) {
	level, ofComponents := c.knownLevels("--proxy-log-level", text)
	_, others := c.knownLevels("--proxy-component-log-level", components)
	c.EnvoyLogLevel = cmp.Or(level, "warning")
	c.EnvoyComponentLog = cmp.Or(ofComponents, others)
}

// knownLevels returns the last level of a list without a component, and those with one.
func (c *Config) knownLevels(flag, text string) (level, ofComponents string) {
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		component, name, scoped := strings.Cut(part, ":")
		if !scoped {
			name = part
		}
		switch {
		case part == "":
		case !slices.Contains(envoyLevels, name) || scoped && component == "":
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s: %q is ignored: Envoy's log has no such level; use one of %s, or COMPONENT:LEVEL",
				flag, part, strings.Join(envoyLevels, ", ")))
		case scoped:
			out = append(out, part)
		default:
			level = name
		}
	}
	return level, strings.Join(out, ",")
}

// meshConfigSource is the name of a MeshConfig file in messages.
const meshConfigSource = "--meshConfig"

// meshConfigFile reads a MeshConfig file into JSON; "{}" if the file does not exist, as in the Pod of a sidecar.
func meshConfigFile(path string, h Host) ([]byte, error) {
	none := []byte("{}")
	if path == "" {
		return none, nil
	}
	data, err := h.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err == nil && len(data) > maxProxyConfig {
		err = fmt.Errorf("%d bytes: at most %d are read", len(data), maxProxyConfig)
	}
	if err == nil {
		err = yamltext.Check(data)
	}
	var out []byte
	if err == nil {
		out, err = yaml.YAMLToJSON(data)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s is no MeshConfig in YAML: %w", meshConfigSource, path, err)
	}
	if string(out) == "null" {
		return none, nil
	}
	return out, nil
}

// meshConfigDefaults returns the defaultConfig of a MeshConfig in JSON; "" if it has none.
func meshConfigDefaults(text []byte) (string, error) {
	var mesh struct {
		DefaultConfig json.RawMessage `json:"defaultConfig"`
	}
	if err := json.Unmarshal(text, &mesh); err != nil {
		return "", fmt.Errorf("%s: %w", meshConfigSource, err)
	}
	return string(mesh.DefaultConfig), nil
}
