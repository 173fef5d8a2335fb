package object

// GatewayName is the body of the objects by which package gatewayname says what a host name of a gateway resolves to.
type GatewayName struct {
	Name string
	// Addresses are IP addresses in canonical form, sorted.
	Addresses []string
}
