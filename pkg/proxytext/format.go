package proxytext

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// formatCommand matches the beginning of a command in the format language of Envoy's header values and access logs:
// "%REQ(X?Y):10%".
var formatCommand = regexp.MustCompile(`^%([A-Z][A-Z0-9_]*)((?:\([^()]*\))?(?::[0-9]{1,9})?)%`)

// What may follow a command's name.
var (
	noArgument     = regexp.MustCompile(`^(\(\))?$`)
	anyArgument    = regexp.MustCompile(`^(\([ -~]*\))?$`)
	headerArgument = regexp.MustCompile("^\\(:?[-!#$%&'*+.^_`|~0-9A-Za-z]+(\\?:?[-!#$%&'*+.^_`|~0-9A-Za-z]+)?\\)(:[0-9]+)?$")
	keyArgument    = regexp.MustCompile(`^\([ -~]+\)$`)
	longArgument   = regexp.MustCompile(`^\([ -~]+\)(:[0-9]+)?$`)
	stateArgument  = regexp.MustCompile(`^\([ -9;-~]+(:(PLAIN|TYPED|FIELD:[ -9;-~]+))?\)(:[0-9]+)?$`)
	scopedArgument = regexp.MustCompile(`^\((ROUTE|CLUSTER|LISTENER|VIRTUAL_HOST|UPSTREAM_HOST|DYNAMIC):[ -~]+\)(:[0-9]+)?$`)
	detailArgument = regexp.MustCompile(`^(\((ALLOW_WHITESPACES)?\))?$`)
	statusArgument = regexp.MustCompile(`^(\((CAMEL_STRING|SNAKE_STRING|NUMBER)?\))?$`)
)

// headerCommands are the commands that a header value may have, with what may follow their name. They tell about the
// request, its connections and the route, which a route's author may see.
var headerCommands = commands(map[*regexp.Regexp]string{
	noArgument: `
		ACCESS_LOG_TYPE BYTES_RECEIVED BYTES_RETRANSMITTED BYTES_SENT CONNECTION_ID CONNECTION_TERMINATION_DETAILS CUSTOM_FLAGS
		DOWNSTREAM_DETECTED_CLOSE_TYPE DOWNSTREAM_DIRECT_LOCAL_ADDRESS DOWNSTREAM_DIRECT_LOCAL_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS
		DOWNSTREAM_DIRECT_REMOTE_PORT DOWNSTREAM_HANDSHAKE_DURATION DOWNSTREAM_HEADER_BYTES_RECEIVED DOWNSTREAM_HEADER_BYTES_SENT
		DOWNSTREAM_LOCAL_ADDRESS DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID DOWNSTREAM_LOCAL_DNS_SAN DOWNSTREAM_LOCAL_EMAIL_SAN
		DOWNSTREAM_LOCAL_IP_SAN DOWNSTREAM_LOCAL_OTHERNAME_SAN DOWNSTREAM_LOCAL_PORT DOWNSTREAM_LOCAL_SUBJECT DOWNSTREAM_LOCAL_URI_SAN
		DOWNSTREAM_PEER_CERT DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256 DOWNSTREAM_PEER_CHAIN_SERIALS DOWNSTREAM_PEER_DNS_SAN
		DOWNSTREAM_PEER_EMAIL_SAN DOWNSTREAM_PEER_FINGERPRINT_1 DOWNSTREAM_PEER_FINGERPRINT_256 DOWNSTREAM_PEER_IP_SAN
		DOWNSTREAM_PEER_ISSUER DOWNSTREAM_PEER_OTHERNAME_SAN DOWNSTREAM_PEER_SERIAL DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_URI_SAN
		DOWNSTREAM_REMOTE_ADDRESS DOWNSTREAM_REMOTE_PORT DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TLS_SESSION_ID DOWNSTREAM_TLS_VERSION
		DOWNSTREAM_TRANSPORT_FAILURE_REASON DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT DURATION GRPC_STATUS_NUMBER HOSTNAME
		FILTER_CHAIN_NAME LOCAL_REPLY_BODY PACKETS_RETRANSMITTED PATH PROTOCOL QUERY_PARAMS REQUESTED_SERVER_NAME REQUEST_DURATION REQUEST_HEADERS_BYTES
		REQUEST_TX_DURATION RESPONSE_CODE RESPONSE_DURATION RESPONSE_FLAGS RESPONSE_FLAGS_LONG RESPONSE_HEADERS_BYTES
		RESPONSE_TRAILERS_BYTES RESPONSE_TX_DURATION ROUNDTRIP_DURATION ROUTE_NAME SPAN_ID STREAM_ID TLS_JA3_FINGERPRINT
		TLS_JA4_FINGERPRINT TRACE_ID UNIQUE_ID UPSTREAM_CLUSTER UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID
		UPSTREAM_CONNECTION_IDS_ATTEMPTED UPSTREAM_CONNECTION_POOL_READY_DURATION UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED
		UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT UPSTREAM_DETECTED_CLOSE_TYPE UPSTREAM_HEADER_BYTES_RECEIVED UPSTREAM_HEADER_BYTES_SENT
		UPSTREAM_HOST UPSTREAM_HOSTS_ATTEMPTED UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT UPSTREAM_HOST_NAME UPSTREAM_HOST_NAMES_ATTEMPTED
		UPSTREAM_HOST_NAME_WITHOUT_PORT UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_PORT UPSTREAM_LOCAL_URI_SAN UPSTREAM_PEER_CERT
		UPSTREAM_PEER_ISSUER UPSTREAM_PEER_SUBJECT UPSTREAM_PEER_URI_SAN UPSTREAM_PROTOCOL UPSTREAM_REMOTE_ADDRESS UPSTREAM_REMOTE_PORT
		UPSTREAM_REQUEST_ATTEMPT_COUNT UPSTREAM_TLS_CIPHER UPSTREAM_TLS_SESSION_ID UPSTREAM_TLS_VERSION
		UPSTREAM_TRANSPORT_FAILURE_REASON UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT VIRTUAL_CLUSTER_NAME
		DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT
		DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT`,
	anyArgument: `
		DOWNSTREAM_PEER_CERT_V_END DOWNSTREAM_PEER_CERT_V_START EMIT_TIME EMIT_TIME_LOCAL START_TIME START_TIME_LOCAL
		UPSTREAM_PEER_CERT_V_END UPSTREAM_PEER_CERT_V_START`,
	headerArgument: `REQ REQUEST_HEADER RESP RESPONSE_HEADER TRAILER`,
	keyArgument:    `CLUSTER_METADATA UPSTREAM_METADATA`,
	longArgument:   `DYNAMIC_METADATA QUERY_PARAM`,
	detailArgument: `RESPONSE_CODE_DETAILS`,
	statusArgument: `GRPC_STATUS`,
})

// operatorCommands are commands that only the mesh's operator may use, in access logs, because they tell about the
// proxy: ENVIRONMENT has the process's variables, which may be credentials; FILTER_STATE and UPSTREAM_FILTER_STATE have
// what filters store; METADATA has the configuration of listeners and virtual hosts, which on a shared gateway may be
// other teams'. Format does not know Envoy's COALESCE and CEL, which can return the same.
var operatorCommands = commands(map[*regexp.Regexp]string{
	longArgument:   `ENVIRONMENT`,
	stateArgument:  `FILTER_STATE UPSTREAM_FILTER_STATE`,
	scopedArgument: `METADATA`,
})

func commands(lists map[*regexp.Regexp]string) map[string]*regexp.Regexp {
	out := map[string]*regexp.Regexp{}
	for argument, list := range lists {
		for name := range strings.FieldsSeq(list) {
			out[name] = argument
		}
	}
	return out
}

// Format checks the format of an access log. Envoy refuses a resource with a lone percent sign or an unknown command in
// it.
func Format(value string) error { return check(value, operatorCommands) }

// HeaderValue checks the value of a header that a route sets: its format, and that it has no command of
// operatorCommands.
func HeaderValue(value string) error { return check(value, nil) }

// check checks a value whose commands may be headerCommands and those of more.
func check(value string, more map[string]*regexp.Regexp) error {
	for rest := value; ; {
		i := strings.IndexByte(rest, '%')
		if i < 0 {
			return nil
		}
		rest = rest[i:]
		if strings.HasPrefix(rest, "%%") {
			rest = rest[2:]
			continue
		}
		command := formatCommand.FindStringSubmatch(rest)
		if command == nil {
			return errors.New("a percent sign begins no command such as %REQ(x-id)%; write %% for a percent sign")
		}
		argument, ok := headerCommands[command[1]]
		if !ok {
			argument, ok = more[command[1]]
		}
		switch {
		case !ok && operatorCommands[command[1]] != nil:
			return fmt.Errorf("command %%%s%% tells of the proxy itself, and a route's headers tell of the request: they may have REQ, RESP, "+
				"TRAILER, QUERY_PARAM, "+
				"DYNAMIC_METADATA, START_TIME, PROTOCOL, HOSTNAME, RESPONSE_*, ROUTE_NAME, DOWNSTREAM_*, UPSTREAM_* and the like", command[1])
		case !ok:
			return fmt.Errorf("unknown command %%%s%%", command[1])
		case !argument.MatchString(command[2]):
			return fmt.Errorf("%q cannot stand behind the command %s", command[2], command[1])
		}
		rest = rest[len(command[0]):]
	}
}

// Commands lists the names of the commands that Format knows, sorted.
func Commands() []string {
	all := maps.Clone(headerCommands)
	maps.Copy(all, operatorCommands)
	return slices.Sorted(maps.Keys(all))
}
