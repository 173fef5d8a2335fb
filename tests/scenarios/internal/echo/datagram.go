package echo

import (
	"net"
	"net/netip"
	"time"
)

// maxDatagram is more than UDP carries.
const maxDatagram = 1 << 16

// serveDatagrams answers each datagram, which is a line of the line protocol, with one that says what came, until the
// socket closes. A query of the path has no effect.
func (p *port) serveDatagrams(socket net.PacketConn) {
	buffer := make([]byte, maxDatagram)
	for {
		n, from, err := socket.ReadFrom(buffer)
		if err != nil {
			return
		}
		var line Line
		if !decodeLine(buffer[:n], &line) {
			line.Body = string(buffer[:n])
		}
		now := time.Now()
		s := &Seen{Workload: p.server.config.Workload, Port: p.Name, App: p.App, Accepted: now, Time: now, LocalPort: p.Port.Port,
			Call: line.Call, Path: line.Path, Body: line.Body[:min(len(line.Body), keptBody)], BodyLength: int64(len(line.Body))}
		if at, err := netip.ParseAddrPort(from.String()); err == nil {
			s.SourceIP, s.SourcePort = at.Addr().Unmap().String(), int(at.Port())
		}
		p.server.journal.add(s)
		_, _ = socket.WriteTo(append(s.encode(0), '\n'), from) // who asked finds that there is no answer
	}
}
